// Weights of 8 bits in rows, for cuBLASLt.
#pragma once

#include "kernels/cuda/cuda_cublaslt_plan.h"
#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/weights/kernel_weights.h"

namespace moracle::cuda {

/// Copies a matrix in layout mma16 to `to`, in the sections of `at`: codes [n, k] in fragment order
/// (layout/fragment_order.h), the order of the activations, and one scale for each block of 128 x
/// 128. Requires cublaslt_block_products. A kernel that does not read `to` may overlap with it
/// (Overlap).
Status unpack_rows(const Queue& queue, const KernelWeights& weights, const CublasLtBlockScratch& at,
                   uint8_t* to, Stream stream);

}  // namespace moracle::cuda
