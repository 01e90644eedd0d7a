// Attention of prompts on Hopper: turns, operands and results of a warpgroup's products.
#pragma once

#include "kernels/cuda/attention/prefill_sm90_tiles.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace moracle::cuda {

/// The two warpgroups take turns to ask for products: the softmax of one then runs behind the
/// products of the other. The second one calls `pass` once at the start.
struct Turn {
  int group;
  __device__ void await() const { named_barrier_sync<kComputers>(1 + group); }
  __device__ void pass() const { named_barrier_arrive<kComputers>(2 - group); }
};

/// Lane k of four has pair k of four rows of eight; after this it has all pairs of row k.
__device__ inline void transpose_pairs(uint32_t (&x)[4]) {
  const int k = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const bool upper = (k & step) != 0;
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i + step], step);
      (upper ? x[i] : x[i + step]) = got;
    }
  }
}

}  // namespace moracle::cuda
