// Global memory: prefetch, and accesses that GPUs of one host exchange data with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moracle::cuda {

__device__ inline void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/// Publishes this thread's earlier writes to all GPUs with `value`.
__device__ inline void store_release_system(std::byte* to, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline uint32_t load_acquire_system(const std::byte* from) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

/// 16 bytes that arrive together on another GPU.
__device__ inline void store_volatile_16(std::byte* to, uint4 x) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y),
               "r"(x.z), "r"(x.w)
               : "memory");
}
__device__ inline uint4 load_volatile_16(const std::byte* from) {
  uint4 x;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

}  // namespace moracle::cuda
