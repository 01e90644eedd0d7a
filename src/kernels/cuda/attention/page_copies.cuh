// Attention of prompts on Hopper: a page of keys or values on its way to shared memory.
#pragma once

#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/gemm_sm90/barrier.cuh"

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
        copy16_to(at, eights, there);
      } else {
        const uint4 loaded = there ? load_eight<kCache>(eights) : uint4{};
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(loaded.x),
                     "r"(loaded.y), "r"(loaded.z), "r"(loaded.w)
                     : "memory");
      }
    }
  }
}

/// Two f16 numbers, rounded to a pair of bf16.
__device__ inline uint32_t f16_pair(uint32_t two) {
  float low, high;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}"
      : "=f"(low), "=f"(high)
      : "r"(two));
  return to_bf16_pair(low, high);
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
      uint32_t x[4];
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(at)
                   : "memory");
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(f16_pair(x[0])),
                   "r"(f16_pair(x[1])), "r"(f16_pair(x[2])), "r"(f16_pair(x[3]))
                   : "memory");
    }
  }
}

/// Arrives when this thread's part of a stage is there for wgmma.
template <DType kCache>
__device__ __forceinline__ void arrive_with_page(uint32_t there) {
  if constexpr (kCache == DType::kBF16) {
    arrive_after_copies(there);
  } else {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive(there);
  }
}

}  // namespace moracle::cuda
