// Plans backend cuda-cublaslt. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <cstdint>

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// The own kernel serves up to this many rows, one tile of the tensor cores, and this many outputs,
/// one block of 16 per SM. It is faster than cuBLASLt there: on an H200 7.4 to 8.1 µs against 8.7
/// for 4096 → 2048, 3.4 against 5.1 for 2048 → 128. With more outputs it is slower: 9.2 to 10.7
/// against 7.6 for 2048 → 5120 (bench/lab/h200.md).
inline constexpr int64_t kFewRows = 8, kFewOutputs = 2048;
inline bool is_few_rows(int64_t rows, int64_t outputs) {
  return rows <= kFewRows && outputs <= kFewOutputs;
}

/// cuBLASLt's workspace: the size that NVIDIA recommends for Hopper. One per device.
inline constexpr int64_t kCublasLtWorkspace = int64_t{32} << 20;

/// From so many tokens on cuBLASLt multiplies fp8 in blocks faster than the kernels of gemm_sm90,
/// though it reads a copy of the weights in rows, which each call makes. Both linear layers of
/// attention, 2048 → 5120 and 4096 → 2048, on an H100: 61 µs instead of 59 with 256 tokens, 63
/// instead of 81 with 512, 78 instead of 114 with 1,024 (bench/lab/h200_attention.md).
inline constexpr int64_t kLeastCublasLtBlockTokens = 384;
/// True if cuBLASLt multiplies these types: weights in blocks of 128 x 128, activations in groups
/// of 128, scales in f32, no bias.
bool cublaslt_block_products(const MatrixShape& shape, const Scheme& scheme);
/// That kernel in plans.
inline constexpr CudaForm kCublasLtBlocksForm{CudaForm::Kernel::kCublasLt,
                                              CudaProducts::kFp8Groups};

/// Sections of the scratch of such a product: codes in rows, their scales, and the scales of up to
/// four rows of activations.
struct CublasLtBlockScratch {
  int64_t scale_row;  ///< scales of 128 rows of weights: one of each block, padded
  int64_t weight_scales, row_scales, bytes;
};
CublasLtBlockScratch cublaslt_block_scratch(const MatrixShape& shape);

}  // namespace moracle::cuda
