// Source of pages: how cached keys and values reach shared memory. A cache of bf16 is copied; other
// dtypes are converted to bf16. Rows past the end of the view become zeros: they have weight 0, but
// memory that was never written may hold NaN.
#pragma once

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "moracle/quant.h"

namespace moracle::cuda {

constexpr int32_t kPagePositions = 64;  // the only page size of the tensor-core kernels

/// Addresses of consecutive keys and values of one KV head.
struct KvRows {
  const std::byte *keys, *values;
};

/// Bytes of a cached element.
constexpr int cache_element(DType cache) {
  return cache == DType::kF32 ? 4 : cache == DType::kF8E4M3 ? 1 : 2;
}

/// Loads eight cached elements as bf16. Exact if the activations are bf16.
template <DType kCache>
__device__ uint4 load_eight(const std::byte* from) {
  if constexpr (kCache == DType::kBF16) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  } else if constexpr (kCache == DType::kF32) {
    const float4 a = __ldg(reinterpret_cast<const float4*>(from)),
                 b = __ldg(reinterpret_cast<const float4*>(from) + 1);
    return {to_bf16_pair(a.x, a.y), to_bf16_pair(a.z, a.w), to_bf16_pair(b.x, b.y),
            to_bf16_pair(b.z, b.w)};
  } else if constexpr (kCache == DType::kF8E4M3) {
    const uint2 codes = __ldg(reinterpret_cast<const uint2*>(from));
    return {e4m3_to_bf16_pair(codes.x), e4m3_to_bf16_pair(codes.x >> 16),
            e4m3_to_bf16_pair(codes.y), e4m3_to_bf16_pair(codes.y >> 16)};
  } else {
    const uint4 halves = __ldg(reinterpret_cast<const uint4*>(from));
    const auto pair = [](uint32_t two) {
      return to_bf16_pair(f16_to_float(static_cast<uint16_t>(two)),
                          f16_to_float(static_cast<uint16_t>(two >> 16)));
    };
    return {pair(halves.x), pair(halves.y), pair(halves.z), pair(halves.w)};
  }
}

/// Copies 16 bytes asynchronously.
struct CopyVectors {
  static constexpr int kBytes = 16;  // in the cache
  __device__ static void put(SharedAddress to, const std::byte* from, bool valid) {
    cp_async_16(to, from, valid);
  }
};
/// Converts eight elements in registers. The thread waits for its load.
template <DType kCache>
struct ConvertVectors {
  static constexpr int kBytes = 8 * cache_element(kCache);
  __device__ static void put(SharedAddress to, const std::byte* from, bool valid) {
    store_shared_16(to, valid ? load_eight<kCache>(from) : uint4{});
  }
};
/// Vectors of 16 bytes of bf16 from a cache of any dtype.
template <DType kCache>
using Bf16Vectors = std::conditional_t<kCache == DType::kBF16, CopyVectors, ConvertVectors<kCache>>;

/// Index of a 16-byte vector in rows of kVectors. The row permutes its vectors, so that the same
/// vector of eight rows lies in different banks.
template <int kVectors>
__device__ __forceinline__ int swizzled(int row, int vec) {
  return row * kVectors + (vec ^ (row & 7));
}

/// Copies kRows rows of kVectors vectors, which are adjacent in the cache, by kCopiers threads.
/// Rows from `count` on become zeros. `index(row, vec)` is an index of `to`.
template <class Vectors, int kRows, int kVectors, int kCopiers, class Index>
__device__ __forceinline__ void copy_rows(uint4* to, const std::byte* from, int count,
                                          const Index& index) {
#pragma unroll
  for (int i = 0; i < kRows * kVectors / kCopiers; ++i) {
    const int at = i * kCopiers + static_cast<int>(threadIdx.x) % kCopiers;
    const int row = at / kVectors, vec = at % kVectors;
    Vectors::put(to + index(row, vec), from + at * Vectors::kBytes, row < count);
  }
}

/// Keys and values of kRows positions in shared memory: a ring slot.
template <int kRows, int kHead, int kValue, int kSize>
struct KvSlot {
  uint4 keys[kRows * kHead * kSize / 16], values[kRows * kValue * kSize / 16];
};

/// Copies kRows positions to a slot as swizzled bf16.
template <DType kCache, int kCopiers, int kRows, int kHead, int kValue>
__device__ __forceinline__ void copy_bf16(KvSlot<kRows, kHead, kValue, 2>& slot, const KvRows& from,
                                          int count) {
  using Vectors = Bf16Vectors<kCache>;
  copy_rows<Vectors, kRows, kHead / 8, kCopiers>(slot.keys, from.keys, count, swizzled<kHead / 8>);
  copy_rows<Vectors, kRows, kValue / 8, kCopiers>(slot.values, from.values, count,
                                                  swizzled<kValue / 8>);
}

}  // namespace moracle::cuda
