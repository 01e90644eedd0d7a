// Instructions of cuda-sm80: products of 16 rows of weights with the columns of 8 tokens, and
// copies from global to shared memory that bypass registers. They exist from compute capability 8.0
// on. Code for older GPUs never runs and only has to compile.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace moracle::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MORACLE_FROM_SM80(...) __trap()
#else
#define MORACLE_FROM_SM80(...) __VA_ARGS__
#endif

// d += a · b. Lane 4 g + t holds rows g and g + 8 of a, column g of b, and columns 2 t and 2 t + 1
// of d.

__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_FROM_SM80(
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

__device__ inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_FROM_SM80(
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

__device__ inline void mma_i8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_FROM_SM80(
      asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)));
}

/// Copies 16 bytes to shared memory asynchronously, or writes zeros if `there` is false. Both
/// addresses are 16-byte aligned.
__device__ inline void copy16(void* to, const void* from, bool there) {
  MORACLE_FROM_SM80(asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)));
}
/// Copies 4 bytes in the same way.
__device__ inline void copy4(void* to, const void* from, bool there) {
  MORACLE_FROM_SM80(asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                                 "l"(__cvta_generic_to_global(from)), "r"(there ? 4 : 0)));
}
/// Commits the copies of this thread since the last call as one batch.
__device__ inline void end_batch() {
  MORACLE_FROM_SM80(asm volatile("cp.async.commit_group;"));
}
/// Waits until at most kOpen batches of this thread are in flight.
template <int kOpen>
__device__ inline void wait_for_batches() {
  MORACLE_FROM_SM80(asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory"));
}

/// Reads four matrices of 8 rows and 16 bytes from shared memory. Lane 8 i + r gives the address of
/// row r of matrix i, and lane 4 g + t gets word t of row g of each.
__device__ inline void read_matrices(const uint8_t* row, uint32_t (&to)[4]) {
  MORACLE_FROM_SM80(asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
                                 : "memory"));
}

#undef MORACLE_FROM_SM80

/// (x & mask) ^ flip in one instruction.
template <uint32_t kMask, uint32_t kFlip>
__device__ inline uint32_t and_xor(uint32_t x) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "n"(kMask), "n"(kFlip));
  return y;
}

}  // namespace moracle::cuda
