// Peak rate of Hopper's tensor cores, with products of tiles in shared memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/limits/random_bits.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/tma.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

constexpr int kWgmmaThreads = 256;  // two warpgroups: one computes while the other waits
constexpr int kWgmmaMultiplies = 8;
constexpr double wgmma_ops(int depth) {
  return 2.0 * 64 * 256 * depth * kWgmmaMultiplies * (kWgmmaThreads / 128);
}

template <Arithmetic kind>
__global__ void __launch_bounds__(kWgmmaThreads) multiply_wgmma(int64_t rounds, uint32_t* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // Rows of 128 bytes: 64 rows for each warpgroup, then 256 rows that both warpgroups multiply
  // with.
  constexpr int kGroupBytes = 64 * 128, kWords = (2 * kGroupBytes + 256 * 128) / 4;
  __shared__ alignas(1024) uint32_t tiles[kWords];
  for (int i = static_cast<int>(threadIdx.x); i < kWords; i += kWgmmaThreads)
    tiles[i] = codes_of<kind>(random_bits(blockIdx.x * kWords + i));
  fence_async_proxy();
  __syncthreads();
  const uint32_t base = shared_address(tiles);
  const uint64_t a = swizzled_descriptor(base + threadIdx.x / 128 * kGroupBytes);
  const uint64_t b = swizzled_descriptor(base + 2 * kGroupBytes);
  constexpr WgmmaTypes kTypes = kind == Arithmetic::kBf16  ? WgmmaTypes::kBf16
                                : kind == Arithmetic::kF16 ? WgmmaTypes::kF16
                                : kind == Arithmetic::kFp8 ? WgmmaTypes::kFp8
                                                           : WgmmaTypes::kInt8;
  uint32_t sum[128] = {};
  for (int64_t r = 0; r < rounds; ++r) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kWgmmaMultiplies; ++i)
      wgmma_n256<kTypes>(sum, a + i % 4 * 2, b + i % 4 * 2);
    wgmma_commit();
    wgmma_wait<0>();
  }
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) all ^= sum[i];
  if (all == 0x9e3779b9u) *out = all;
#endif
}

constexpr auto wgmma_loop(Arithmetic kind) {
  return kind == Arithmetic::kBf16  ? multiply_wgmma<Arithmetic::kBf16>
         : kind == Arithmetic::kF16 ? multiply_wgmma<Arithmetic::kF16>
         : kind == Arithmetic::kFp8 ? multiply_wgmma<Arithmetic::kFp8>
                                    : multiply_wgmma<Arithmetic::kInt8>;
}

}  // namespace moracle::cuda
