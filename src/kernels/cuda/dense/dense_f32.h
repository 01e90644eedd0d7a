// Products of f32 weights in rows and bf16 activations, with sums in f32. A GEMV for few rows; for
// more rows tensor cores, where a weight is the sum of three bf16.
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/device.h"

namespace moracle::cuda {

/// y = x · weightsᵀ + bias.
struct DenseF32 {
  const float* weights = nullptr;  ///< [n, k], 16-byte aligned
  const float* bias = nullptr;     ///< [n]; null: none
  int64_t n = 0, k = 0;
  Matrix x;  ///< [rows, k] bf16
  Matrix y;  ///< [rows, n], f32, bf16 or f16
};

/// Enqueues the product by GEMV, a CTA for each output. Requires rows <= kDenseGemvF32Rows. A row's
/// bits do not depend on the other rows.
Status multiply_gemv_f32(const Queue& queue, const DenseF32& args, Stream stream);
/// Enqueues the product in tiles of 64 rows and 32 outputs, with sums in another order. A row's
/// bits do not depend on the other rows.
Status multiply_gemm_f32(const Queue& queue, const DenseF32& args, Stream stream);

/// Loads the kernels, which graph capture could not do. The GPU of the queue is current.
Status load_dense_f32();

}  // namespace moracle::cuda
