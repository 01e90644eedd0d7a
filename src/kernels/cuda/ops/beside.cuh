// Prologue and epilogue of a kernel that may overlap with a neighbour in the stream (PDL).
#pragma once

#include "kernels/cuda/device/overlap.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {

__device__ inline void begin_kernel(Overlap overlap) {
  if (overlap == Overlap::kPrevious) return;
  if (overlap == Overlap::kNext) pdl_launch_dependents();
  pdl_wait();
  if (overlap == Overlap::kNone) pdl_launch_dependents();
}
/// Ends a kernel. Later kernels then find both this kernel and the previous one complete.
__device__ inline void end_kernel(Overlap overlap) {
  if (overlap != Overlap::kPrevious) return;
  pdl_wait();
  pdl_launch_dependents();
}

}  // namespace moracle::cuda
