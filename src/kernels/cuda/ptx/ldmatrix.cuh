// ldmatrix and movmatrix: [8, 8] matrices of 16-bit numbers, spread over a warp as mma.sync takes
// them.
#pragma once

#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {

/// Loads four matrices. Lane l passes the address of row l % 8 of matrix l / 8; lane 4 g + t gets
/// pair t of row g of each matrix, or of column g if `kTransposed`.
template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&to)[4], SharedAddress row) {
#if __CUDA_ARCH__ >= 750
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row.value)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row.value)
                 : "memory");
  }
#endif
}

/// Transposes a matrix. Lane 4 g + t passes pair t of row g and gets pair t of column g.
__device__ inline uint32_t movmatrix_trans(uint32_t pair) {
  uint32_t to = 0;
#if __CUDA_ARCH__ >= 750
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
#endif
  return to;
}

}  // namespace moracle::cuda
