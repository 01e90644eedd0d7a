// A bulk copy of contiguous bytes, which the library no longer uses: TMA tile loads replaced it.
#pragma once

#include "kernels/cuda/gemm_sm90/barrier.cuh"

namespace moracle::cuda {

/// Copies a multiple of 16 bytes to shared memory and counts them at the barrier.
__device__ inline void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Fetches a multiple of 16 bytes into L2.
__device__ inline void prefetch_bulk(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(bytes)
               : "memory");
}

}  // namespace moracle::cuda
