<<<<<<< HEAD
// The begin and the end of a kernel that may overlap with a neighbour.
#pragma once

#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/device/overlap.h"

namespace moracle::cuda {

__device__ inline void begin_kernel(Overlap overlap) {
  if (overlap == Overlap::kPrevious) return;
  if (overlap == Overlap::kNext) start_later_kernels();
  await_earlier_kernels();
  if (overlap == Overlap::kNone) start_later_kernels();
}
/// Later kernels then find both this kernel and the one before complete.
__device__ inline void end_kernel(Overlap overlap) {
  if (overlap != Overlap::kPrevious) return;
=======
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
>>>>>>> rows
  await_earlier_kernels();
  start_later_kernels();
}

}  // namespace moracle::cuda
