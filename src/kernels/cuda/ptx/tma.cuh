// TMA: bulk copies from global to shared memory that count their bytes at an mbarrier. From compute
// capability 9.0 on.
#pragma once

#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {

/// Loads the tile of a tensor that begins at index c0, c1 (c2 and c3). `to` is 128-byte aligned, or
/// 1,024-byte aligned with a swizzle.
__device__ inline void tma_load(uint32_t to, const TensorMap& map, int c0, int c1,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(barrier)
      : "memory");
}
__device__ inline void tma_load(uint32_t to, const TensorMap& map, int c0, int c1, int c2,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(barrier)
      : "memory");
}
__device__ inline void tma_load(uint32_t to, const TensorMap& map, int c0, int c1, int c2, int c3,
                                uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
      "l"(&map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(barrier)
      : "memory");
}
/// Loads contiguous bytes: a multiple of 16, at aligned addresses.
__device__ inline void tma_load_bytes(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void tma_prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// Orders this thread's accesses to shared memory before later ones by TMA and wgmma.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace moracle::cuda
