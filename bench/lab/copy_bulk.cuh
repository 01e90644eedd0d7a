// Prefetch of contiguous bytes into L2, which the library no longer uses.
#pragma once

#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace moracle::cuda {

/// Fetches a multiple of 16 bytes into L2.
__device__ inline void prefetch_bulk(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
}

}  // namespace moracle::cuda
