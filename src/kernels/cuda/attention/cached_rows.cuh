// Cached rows that lie anywhere: loads and products with a query.
#pragma once

#include "kernels/cuda/attention/heads.cuh"

namespace moracle::cuda {

constexpr int kKeysTogether = 4;  // loads in flight of a lane

/// One column of a cached row.
template <DType kCache>
__device__ float load_one(const std::byte* row, int64_t column) {
  if constexpr (kCache == DType::kF32) return reinterpret_cast<const float*>(row)[column];
  if constexpr (kCache == DType::kF8E4M3)
    return e4m3_to_float(reinterpret_cast<const uint8_t*>(row)[column]);
  const uint16_t half = reinterpret_cast<const uint16_t*>(row)[column];
  return kCache == DType::kBF16 ? bf16_to_float(half) : f16_to_float(half);
}

/// Eight columns of a cached row, from a multiple of 8 on.
template <DType kCache>
__device__ void load_lane(const std::byte* key, int64_t column, float (&to)[8]) {
  if constexpr (kCache == DType::kBF16) {
    const uint4 eight = load_eight<kCache>(key + column * 2);
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = load_one<kCache>(key, column + i);
  }
}

/// scores[j] of `count` keys. Each warp takes keys in groups.
template <DType kCache>
__device__ void score_keys(const std::byte* const* rows, const float* query, int64_t head_dim,
                           int32_t count, float* scores) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool vectors = head_dim % 8 == 0;
  for (int32_t first = warp * kKeysTogether; first < count; first += kWarps * kKeysTogether) {
    float products[kKeysTogether] = {};
    const std::byte* keys[kKeysTogether];
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) keys[j] = rows[min(first + j, count - 1)];
    if (vectors) {
      for (int64_t d = lane * 8; d < head_dim; d += 32 * 8) {
        float numbers[kKeysTogether][8];
#pragma unroll
        for (int j = 0; j < kKeysTogether; ++j) load_lane<kCache>(keys[j], d, numbers[j]);
#pragma unroll
        for (int j = 0; j < kKeysTogether; ++j) {
#pragma unroll
          for (int i = 0; i < 8; ++i) products[j] += query[d + i] * numbers[j][i];
        }
      }
    } else {
      for (int64_t d = lane; d < head_dim; d += 32) {
#pragma unroll
        for (int j = 0; j < kKeysTogether; ++j)
          products[j] += query[d] * load_one<kCache>(keys[j], d);
      }
    }
#pragma unroll
    for (int j = 0; j < kKeysTogether; ++j) {
      for (int step = 16; step > 0; step /= 2)
        products[j] += __shfl_xor_sync(kAllLanes, products[j], step);
      if (lane == 0 && first + j < count) scores[first + j] = products[j];
    }
  }
}

}  // namespace moracle::cuda
