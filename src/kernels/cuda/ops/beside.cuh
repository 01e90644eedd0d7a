// Kernels that may run at the same time as the kernel before them.
#pragma once

#include "kernels/cuda/device/dependent.cuh"

namespace moracle::cuda {

/// For kernels that may also run beside the kernel before them, whose results they do not need.
/// They then wait at their end, so that later kernels find both complete.
__device__ inline void begin_kernel(bool beside_previous) {
  if (beside_previous) return;
  await_earlier_kernels();
  start_later_kernels();
}
__device__ inline void end_kernel(bool beside_previous) {
  if (!beside_previous) return;
  await_earlier_kernels();
  start_later_kernels();
}

}  // namespace moracle::cuda
