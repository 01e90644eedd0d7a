// Products of a chunk of tokens on tensor cores, which recurrent layers share: tiles in shared
// memory, and accumulators of a warp that become operands.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

constexpr int kChunk = 64;               // tokens of a chunk
constexpr int kTokenTiles = kChunk / 8;  // of 8 columns of a product

/// [kRows, 8 · kEights] of bf16 in shared memory. The 16-byte vectors of a row are permuted by the
/// row, so that the same vector of eight consecutive rows lies in different banks.
template <int kRows, int kEights>
struct Swizzled {
  uint4 eights[kRows * kEights];
  __device__ uint4* at(int row, int eight) {
    constexpr int kRowsOfLine = kEights < 8 ? 8 / kEights : 1;  // rows in 128 bytes
    return eights + row * kEights + (eight ^ (row / kRowsOfLine & (kEights < 8 ? kEights - 1 : 7)));
  }
};

// Accumulators [16, 8 · kTiles] of a warp. Lane 4 g + k has rows g and g + 8, and columns 2 k and
// 2 k + 1 of each 8. Rows are value columns.
template <int kTiles>
using Sums = float[kTiles][4];

// Converts the accumulators to left operands of products with [8 · kTiles, n] matrices.
template <int kTiles>
__device__ inline void to_operands(const float (&sums)[kTiles][4], uint32_t (&to)[kTiles / 2][4]) {
#pragma unroll
  for (int i = 0; i < kTiles / 2; ++i) {
#pragma unroll
    for (int c = 0; c < 4; ++c)
      to[i][c] = to_bf16_pair(sums[2 * i + c / 2][c % 2 * 2], sums[2 * i + c / 2][c % 2 * 2 + 1]);
  }
}

// sums += a · bᵀ for b [kChunk, 32 · kTwos] with rows of pairs. kTriangle: b is lower-triangular.
template <bool kTriangle, int kTwos, int kEights>
__device__ inline void multiply_rows(Sums<kTokenTiles>& sums, const uint32_t (&a)[2 * kTwos][4],
                                     Swizzled<kChunk, kEights>& b) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kTwos; ++i) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      if (kTriangle && 4 * i > n) continue;
      uint32_t pairs[4];
      ldmatrix_x4(pairs, b.at(8 * n + lane % 8, 4 * i + lane / 8));
      mma_bf16(sums[n], a[2 * i], pairs[0], pairs[1]);
      if (!kTriangle || 4 * i + 2 <= n) mma_bf16(sums[n], a[2 * i + 1], pairs[2], pairs[3]);
    }
  }
}

// Multiplies column j by factors[j].
template <int kTiles>
__device__ inline void scale_columns(float (&sums)[kTiles][4], const float* factors) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(factors + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[n][c] *= c % 2 == 0 ? two.x : two.y;
  }
}

__device__ inline float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ inline float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

}  // namespace moracle::cuda
