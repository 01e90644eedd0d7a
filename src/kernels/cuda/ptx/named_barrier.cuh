// Named barriers: `kThreads` threads of a CTA meet at barrier 1 to 15. __syncthreads() is barrier
// 0.
#pragma once

namespace moracle::cuda {

template <int kThreads>
__device__ __forceinline__ void named_barrier_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}
/// Arrives without waiting.
template <int kThreads>
__device__ __forceinline__ void named_barrier_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

}  // namespace moracle::cuda
