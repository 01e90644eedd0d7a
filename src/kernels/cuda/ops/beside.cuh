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
  await_earlier_kernels();
  start_later_kernels();
}

}  // namespace moracle::cuda
