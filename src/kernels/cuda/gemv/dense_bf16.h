// GEMV on bf16 weights in rows, for few outputs. Faster than cuBLASLt where all CTAs run at once
// (kDenseGemvOutputs).
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/ops.h"

namespace moracle::cuda {

/// y = x · weightsᵀ + bias, sums in f32.
struct DenseBf16 {
  const uint16_t* weights = nullptr;  ///< [n, k] bf16, 16-byte aligned
  const float* bias = nullptr;        ///< [n]; null: none
  int64_t n = 0, k = 0;               ///< k is a multiple of 8
  Matrix x;                           ///< [rows, k] bf16, rows <= kDenseGemvRows
  Matrix y;                           ///< [rows, n], f32, bf16 or f16
};
/// Enqueues the product. A row's bits do not depend on the other rows.
Status multiply_dense_bf16(const Queue& queue, const DenseBf16& args, Stream stream);

/// Loads the kernels, which graph capture could not do. The GPU of `queue` is current.
Status load_dense_bf16();

}  // namespace moracle::cuda
