// cp.async: copies from global to shared memory that bypass registers, from compute capability 8.0
// on. Code for older GPUs only has to compile.
#pragma once

#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {

/// Copies 16 bytes, or writes zeros if `there` is false. Both addresses are 16-byte aligned.
__device__ inline void cp_async_16(SharedAddress to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.value), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#endif
}
/// Copies 4 bytes, or writes zeros.
__device__ inline void cp_async_4(SharedAddress to, const void* from, bool there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to.value), "l"(from),
               "r"(there ? 4 : 0)
               : "memory");
#endif
}
/// Commits this thread's copies since the last call as one group.
__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits until at most `kPending` groups of this thread are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace moracle::cuda
