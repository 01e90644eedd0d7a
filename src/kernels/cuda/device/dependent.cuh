// Programmatic dependent launch: a kernel may start while the one before it still runs. Every
// kernel that is launched so waits before it touches what earlier kernels read or write.
#pragma once

namespace moracle::cuda {

/// Waits until all kernels before this one are complete, and their writes visible.
__device__ inline void await_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next kernel start where this one leaves room.
__device__ inline void start_later_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace moracle::cuda
