// Attention of prompts on Hopper: a page of keys or values on its way to shared memory.
#pragma once

#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace moracle::cuda {

constexpr int kLoaders = 128;  // threads that copy

/// Copies a page of one head. Rows from `count` on become zeros: memory that was never written has
/// weight 0, but it may hold NaN. All places of a thread are one address and constants.
template <DType kCache, int kColumns, int kAtomBytes>
__device__ __forceinline__ void copy_page(uint32_t to, const std::byte* from, int count,
                                          int thread) {
  constexpr int kSize = cache_element(kCache), kRows = kLoaders / 8;  // at once
  const int own = thread / 8, eight = thread % 8;
  const uint32_t place = to + own * 128 + ((eight ^ own % 8) << 4);
  const std::byte* const source = from + (own * kColumns + eight * 8) * kSize;
#pragma unroll
  for (int row = 0; row < kPagePositions; row += kRows) {
    const bool there = row + own < count;
#pragma unroll
    for (int atom = 0; atom < kColumns / 64; ++atom) {
      const uint32_t at = place + atom * kAtomBytes + row * 128;
      const std::byte* const eights = source + (row * kColumns + atom * 64) * kSize;
      if constexpr (kCache == DType::kBF16) {
        cp_async_16(at, eights, there);
      } else {
        const uint4 loaded = there ? load_eight<kCache>(eights) : uint4{};
        store_shared_16(at, loaded);
      }
    }
  }
}

/// Rounds this thread's copies of a page from f16 to bf16, in place.
template <int kColumns, int kAtomBytes>
__device__ __forceinline__ void round_page(uint32_t to, int thread) {
  constexpr int kRows = kLoaders / 8;
  const int own = thread / 8, eight = thread % 8;
  const uint32_t place = to + own * 128 + ((eight ^ own % 8) << 4);
#pragma unroll
  for (int row = 0; row < kPagePositions; row += kRows) {
#pragma unroll
    for (int atom = 0; atom < kColumns / 64; ++atom) {
      const uint32_t at = place + atom * kAtomBytes + row * 128;
      const uint4 x = load_shared_16(at);
      store_shared_16(at, {f16_to_bf16_pair(x.x), f16_to_bf16_pair(x.y), f16_to_bf16_pair(x.z),
                           f16_to_bf16_pair(x.w)});
    }
  }
}

/// Arrives when this thread's part of a stage is there for wgmma.
template <DType kCache>
__device__ __forceinline__ void arrive_with_page(uint32_t there) {
  if constexpr (kCache == DType::kBF16) {
    mbarrier_arrive_after_cp_async(there);
  } else {
    fence_async_proxy();
    mbarrier_arrive(there);
  }
}

}  // namespace moracle::cuda
