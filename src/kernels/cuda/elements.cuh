// Loads and stores of activation elements in device memory, and element-wise kernels.
#pragma once

#include "base/scalar.h"
#include "base/text.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

/// Errors: a matrix is not f32, bf16 or f16.
inline Status check_floats(std::initializer_list<const Matrix*> matrices) {
  return moracle::check_floats("cuda", matrices);
}

__device__ inline float load(const Matrix& m, int64_t r, int64_t c) {
  const int64_t at = r * m.stride + c;
  switch (m.dtype) {
    case DType::kF32:
      return static_cast<const float*>(m.data)[at];
    case DType::kBF16:
      return bf16_to_float(static_cast<const uint16_t*>(m.data)[at]);
    default:
      return f16_to_float(static_cast<const uint16_t*>(m.data)[at]);
  }
}

__device__ inline void store(const Matrix& m, int64_t r, int64_t c, float value) {
  const int64_t at = r * m.stride + c;
  switch (m.dtype) {
    case DType::kF32:
      static_cast<float*>(m.data)[at] = value;
      return;
    case DType::kBF16:
      static_cast<uint16_t*>(m.data)[at] = float_to_bf16(value);
      return;
    default:
      static_cast<uint16_t*>(m.data)[at] = float_to_f16(value);
  }
}

/// Returns the expert of row r from offsets [num_experts + 1], or num_experts if no expert has it.
__device__ inline int64_t expert_of(const int32_t* offsets, int64_t num_experts, int64_t r) {
  int64_t low = 0, high = num_experts;  // find the first e with r < offsets[e + 1]
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (r < offsets[middle + 1])
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

constexpr int kElementThreads = 256;
constexpr int64_t kElementColumns = 1024;  // columns of one row that a block processes

template <class Each>
__global__ void each_element(int64_t rows, int64_t cols, Each each) {
  pdl_wait();
  pdl_launch_dependents();
  const int64_t tiles = (cols + kElementColumns - 1) / kElementColumns;
  for (int64_t b = blockIdx.x; b < rows * tiles; b += gridDim.x) {
    const int64_t r = b / tiles, first = b % tiles * kElementColumns;
    const int64_t last = min(cols, first + kElementColumns);
    for (int64_t c = first + threadIdx.x; c < last; c += kElementThreads) each(r, c);
  }
}

/// Calls each(r, c) for every element of [rows, cols].
template <class Each>
Status launch_elements(const Queue& queue, Stream stream, const char* name, int64_t rows,
                       int64_t cols, const Each& each) {
  const int64_t tiles = (cols + kElementColumns - 1) / kElementColumns;
  return launch_early(queue, stream, name, each_element<Each>, rows * tiles, kElementThreads, 0,
                      rows, cols, each);
}

}  // namespace moracle::cuda
