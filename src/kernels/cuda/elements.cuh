// Loads and stores of activation elements in device memory.
#pragma once

#include "base/scalar.h"
#include "moracle/base.h"

namespace moracle::cuda {

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

}  // namespace moracle::cuda
