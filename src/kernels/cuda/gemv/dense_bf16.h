// A dense matrix of bf16 with few outputs times few rows of activations. Faster than cuBLASLt where
// all blocks run at once (kFewOutputs).
#pragma once

#include "kernels/cuda/device/cuda_queue.h"
#include "kernels/ops.h"

namespace moracle::cuda {

/// y = x · weightsᵀ + bias, sums in f32.
struct FewRows {
  const uint16_t* weights = nullptr;  ///< [n, k] bf16, 16-byte aligned
  const float* bias = nullptr;        ///< [n]; null: none
  int64_t n = 0, k = 0;               ///< k is a multiple of 8
  Matrix x;                           ///< [rows, k] bf16, rows <= kFewRows
  Matrix y;                           ///< [rows, n], f32, bf16 or f16
};
/// Enqueues the product. A row's bits do not depend on the other rows.
Status multiply_few_rows(const Queue& queue, const FewRows& args, Stream stream);

/// Loads the kernels, which graph capture could not do. The GPU of `queue` is current.
Status load_few_rows();

}  // namespace moracle::cuda
