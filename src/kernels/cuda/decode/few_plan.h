// Plans the kernels for few tokens. Plain C++, so that builds without CUDA can plan them, too.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// Most tokens of one call, and most slots (tokens times top_k).
inline constexpr int64_t kMostFewTokens = 64, kMostFewSlots = 384;
/// Most tokens, and most slots, for which GEMM 2 adds the rows of each token itself.
inline constexpr int64_t kMostAddedTokens = 16, kMostAddedSlots = 128;

/// True if these kernels can read weights of this shape in this scheme.
bool few_serves(const MatrixShape& shape, const Scheme& scheme);

/// Most tokens of a linear layer: one reading of its weights.
inline constexpr int64_t kMostFewLinearTokens = 16;

/// Returns the most tokens that these kernels serve faster than the others; 0: none. wgmma serves
/// from `wgmma_tokens` on; 0: never.
int64_t few_most_tokens(const KernelRequest& request, int64_t wgmma_tokens);

/// Returns the tokens up to which these kernels are faster than wgmma, whatever the layer's size;
/// 0: its size decides.
int64_t few_before_wgmma(const KernelRequest& request);

/// 0: kernels for 8 rows of an expert, 1: for 16.
int few_choice(int64_t tokens, int64_t top_k, int64_t num_experts);
/// True if GEMM 2 with `outputs` outputs adds the rows of each token itself.
bool few_adds(int64_t tokens, int64_t top_k, int64_t outputs);

/// The kernel for so many rows. `scheme`: of the products. `adds`: GEMM 2 with the weighted sum.
CudaForm few_form(const Scheme& scheme, int rows, bool adds);

}  // namespace moracle::cuda
