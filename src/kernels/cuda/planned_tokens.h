// Reads the token ranges of CUDA kernels from a plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// A range of token counts, both ends inclusive.
struct PlannedTokens {
  int64_t first, last;
};

/// Token counts that the plan runs in kernels of this kind; nullopt: none.
inline std::optional<PlannedTokens> planned_tokens(const KernelPlan& plan, CudaForm::Kernel kernel,
                                                   bool fused) {
  std::optional<PlannedTokens> tokens;
  for (const PlannedKernel& one : plan.kernels) {
    if (std::get<CudaForm>(one.form).kernel != kernel || one.fused != fused) continue;
    const KernelRange& range = one.range;
    const int64_t last = range.to_tokens == 0 ? INT64_MAX : range.to_tokens;
    tokens = {tokens ? tokens->first : range.from_tokens, last};
  }
  return tokens;
}

}  // namespace moracle::cuda
