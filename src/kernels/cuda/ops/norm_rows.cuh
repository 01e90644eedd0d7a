// RMSNorm of a row of bf16 by 256 threads, with the residual sum before it. Every kernel that
// normalizes uses these parts, so that all of them give the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "base/scalar.h"
#include "kernels/cuda/block.cuh"
#include "kernels/ops.h"

namespace moracle::cuda {

inline constexpr int kNormThreads = 256;
inline constexpr int kMostEights = 4;  ///< vectors of a row that a thread keeps

/// Eight bf16 in one 16-byte vector.
struct Eight {
  uint4 bits;
  __device__ float operator[](int i) const {
    const uint32_t pair = (&bits.x)[i / 2];
    return bf16_to_float(static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16));
  }
};
__device__ inline Eight eight_of(const float (&values)[8]) {
  Eight to;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    (&to.bits.x)[i] = float_to_bf16(values[2 * i]) |
                      static_cast<uint32_t>(float_to_bf16(values[2 * i + 1])) << 16;
  return to;
}
__device__ inline Eight* eights(const Matrix& m, int64_t r) {
  return reinterpret_cast<Eight*>(static_cast<uint16_t*>(m.data) + r * m.stride);
}

/// x + y, rounded to bf16.
__device__ inline Eight added(const Eight x, const Eight y) {
  float sums[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = x[i] + y[i];
  return eight_of(sums);
}
/// Adds the squares of a thread's next vector.
__device__ inline void add_squares(const Eight& x, float& squares) {
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += x[i] * x[i];
}
__device__ inline float norm_scale(float squares, int64_t cols, float epsilon) {
  return 1.0f / sqrtf(squares / static_cast<float>(cols) + epsilon);
}
/// Weights of a vector's columns.
struct EightWeights {
  float4 low, high;
};
__device__ inline EightWeights norm_weights(const float* weight, int at) {
  const auto* const vectors = reinterpret_cast<const float4*>(weight);
  return {vectors[2 * at], vectors[2 * at + 1]};
}
__device__ inline Eight normalized(const Eight& x, float scale, const EightWeights& w) {
  const float weights[8] = {w.low.x,  w.low.y,  w.low.z,  w.low.w,
                            w.high.x, w.high.y, w.high.z, w.high.w};
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = x[i] * scale * weights[i];
  return eight_of(values);
}

/// True if all rows are whole aligned vectors of bf16, of which a thread keeps at most kMostEights.
inline bool are_eights(std::initializer_list<const Matrix*> matrices, const float* weight) {
  return reinterpret_cast<uintptr_t>(weight) % 16 == 0 &&
         std::all_of(matrices.begin(), matrices.end(), [](const Matrix* m) {
           return m->dtype == DType::kBF16 && m->cols % 8 == 0 && m->stride % 8 == 0 &&
                  m->cols <= int64_t{8} * kNormThreads * kMostEights &&
                  reinterpret_cast<uintptr_t>(m->data) % 16 == 0;
         });
}

}  // namespace moracle::cuda
