// Clusters of CTAs: barriers and distributed shared memory. From compute capability 9.0 on. Code
// for older GPUs only has to compile.
#pragma once

#include <cstdint>

namespace moracle::cuda {

__device__ inline uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

/// Arrives at the cluster's barrier, and publishes this thread's earlier writes to the cluster.
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
/// Arrives without publishing writes: other CTAs only learn that this one runs.
__device__ inline void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
/// Waits for all threads of the cluster that have not exited.
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// Loads 16 bytes from the same address in the shared memory of CTA `rank`.
__device__ inline uint4 load_cluster_16(uint32_t address, uint32_t rank) {
  uint4 value{};
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
      : "r"(address), "r"(rank)
      : "memory");
#endif
  return value;
}
/// Stores to the same address in the shared memory of CTA `rank`.
__device__ inline void store_cluster(uint32_t address, uint32_t rank, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n"
      "}" ::"r"(address),
      "r"(rank), "f"(value)
      : "memory");
#endif
}

/// Stores 16 bytes to the same address in the shared memory of CTA `rank`, and then counts them at
/// its mbarrier: no CTA waits for the store.
__device__ inline void store_async_16(uint32_t address, uint32_t barrier, uint32_t rank, uint4 x) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there, barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 barrier, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, "
      "%6}, [barrier];\n"
      "}" ::"r"(address),
      "r"(barrier), "r"(rank), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
      : "memory");
#endif
}

}  // namespace moracle::cuda
