// Programmatic dependent launch (PDL): a kernel may start while the previous kernel still runs.
// Every kernel launched with PDL waits before it touches memory that earlier kernels read or write.
#pragma once

namespace moracle::cuda {

/// Waits until all earlier kernels are complete and their writes visible.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start as soon as SMs have space for its CTAs.
__device__ inline void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moracle::cuda
