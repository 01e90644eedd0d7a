// Plans backend cuda-cublaslt. Plain C++, so that builds without CUDA can plan it, too.
#pragma once

#include <cstdint>

#include "oracle/kernel_plan.h"

namespace moracle::cuda {

/// cuBLASLt's workspace: the size that NVIDIA recommends for Hopper. One per device.
inline constexpr int64_t kCublasLtWorkspace = int64_t{32} << 20;

/// From this many tokens on, cuBLASLt multiplies block-scaled fp8 faster than gemm_sm90, although
/// each call first copies the weights into rows. Both linear layers of attention, 2048 → 5120 and
/// 4096 → 2048, on an H100: 61 µs instead of 59 with 256 tokens, 63 instead of 81 with 512, 78
/// instead of 114 with 1,024 (bench/lab/h200_attention.md).
inline constexpr int64_t kLeastCublasLtBlockTokens = 384;
/// True if cuBLASLt multiplies these types: weights in blocks of 128 x 128, activations in groups
/// of 128, scales in f32, no bias.
bool cublaslt_block_products(const MatrixShape& shape, const Scheme& scheme);
/// The form of this kernel in plans.
inline constexpr CudaForm kCublasLtBlocksForm{CudaForm::Kernel::kCublasLt,
                                              CudaProducts::kFp8Groups};

/// Sections of the scratch of a block-scaled product: codes in rows, their scales, and the scales
/// of up to four rows of activations.
struct CublasLtBlockScratch {
  int64_t scale_row;  ///< scales of 128 rows of weights: one of each block, padded
  int64_t weight_scales, row_scales, bytes;
};
CublasLtBlockScratch cublaslt_block_scratch(const MatrixShape& shape);

}  // namespace moracle::cuda
