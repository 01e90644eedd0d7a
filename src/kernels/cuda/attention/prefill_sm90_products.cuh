// Attention of prompts on Hopper: turns, operands and results of a warpgroup's products.
#pragma once

#include "kernels/cuda/attention/prefill_sm90_tiles.cuh"
#include "kernels/cuda/gemm_sm90/wgmma.cuh"

namespace moracle::cuda {

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// Loads four [8, 8] matrices; lane l passes the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices_at(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

/// The two warpgroups take turns to ask for products: the softmax of one then runs behind the
/// products of the other. The second one calls `pass` once at the start.
struct Turn {
  int group;
  __device__ void await() const {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kComputers) : "memory");
  }
  __device__ void pass() const {
    asm volatile("bar.arrive %0, %1;" ::"r"(2 - group), "n"(kComputers) : "memory");
  }
};

/// Descriptor of rows that are columns of the operand: 64 columns are 128 bytes, swizzled.
template <int kAtomBytes>
__device__ inline uint64_t column_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{kAtomBytes >> 4} << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

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
