// Reads plans of CUDA rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// The numbers of tokens, both inclusive.
struct PlannedTokens {
  int64_t first, last;
};

/// The numbers of tokens that run in such kernels of a plan; nullopt: it has none.
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
