// Plans the GEMV kernels. Plain C++, so that builds without CUDA can plan them, too.
#pragma once

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// Most tokens of one call, and most slots (tokens times top_k).
inline constexpr int64_t kMostGemvTokens = 64, kMostGemvSlots = 384;
/// Most tokens, and most slots, for which GEMM 2 adds the rows of each token itself.
inline constexpr int64_t kMostAddedTokens = 16, kMostAddedSlots = 128;

/// k-blocks that a warp reads at once: 2 KiB of codes of a panel. Where sums end with groups of
/// half k-blocks 1 KiB: scales and minimums take up to as many bytes as the codes.
int gemv_stage_blocks(const MatrixShape& shape, const Scheme& scheme);

/// True if these kernels can read weights of this shape in this scheme.
bool gemv_serves(const MatrixShape& shape, const Scheme& scheme);

/// Most tokens of a linear layer: one reading of its weights.
inline constexpr int64_t kMostGemvLinearTokens = 16;

/// Returns the most tokens that these kernels serve faster than the others; 0: none. wgmma serves
/// from `wgmma_tokens` on; 0: never.
int64_t gemv_most_tokens(const KernelRequest& request, int64_t wgmma_tokens);

/// Returns the tokens up to which these kernels are faster than wgmma, whatever the layer's size;
/// 0: its size decides.
int64_t gemv_before_wgmma(const KernelRequest& request);

/// 0: kernels for 8 rows of an expert, 1: for 16.
int gemv_choice(int64_t tokens, int64_t top_k, int64_t num_experts);
/// True if GEMM 2 with `outputs` outputs adds the rows of each token itself.
bool gemv_combines(int64_t tokens, int64_t top_k, int64_t outputs);

/// The kernel for `rows` rows. `scheme`: of the products. `adds`: GEMM 2 with the weighted sum.
CudaForm gemv_form(const MatrixShape& shape, const Scheme& scheme, int rows, bool adds);

/// The GEMV on bf16 in rows (dense_bf16.cuh) serves up to this many rows, one tile of the tensor
/// cores, and this many outputs, one CTA of 16 per SM. It is faster than cuBLASLt there: on an
/// H200 7.4 to 8.1 µs against 8.7 for 4096 → 2048, 3.4 against 5.1 for 2048 → 128. With more
/// outputs it is slower: 9.2 to 10.7 against 7.6 for 2048 → 5120 (bench/lab/h200.md).
inline constexpr int64_t kDenseGemvRows = 8, kDenseGemvOutputs = 2048;
inline bool is_dense_gemv(int64_t rows, int64_t outputs) {
  return rows <= kDenseGemvRows && outputs <= kDenseGemvOutputs;
}

}  // namespace moracle::cuda
