// mma.sync: a warp's product of [16, k] · [k, 8], from compute capability 8.0 on. Code for older
// GPUs only has to compile.
//
// d += a · b. Lane 4 g + t holds rows g and g + 8 of a, column g of b, and columns 2 t and 2 t + 1
// of d. It holds bytes 4 t to 4 t + 3 and 16 + 4 t to 16 + 4 t + 3 of a row of a, and the same of
// a column of b.
#pragma once

#include <cstdint>

namespace moracle::cuda {

#if __CUDA_ARCH__ >= 800
#define MORACLE_MMA(type, c)                                                            \
  asm("mma.sync.aligned." type " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
      : "+" c(d[0]), "+" c(d[1]), "+" c(d[2]), "+" c(d[3])                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
#define MORACLE_MMA(type, c)
#endif

__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "f");
}
__device__ inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_MMA("m16n8k16.row.col.f32.f16.f16.f32", "f");
}
__device__ inline void mma_i8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  MORACLE_MMA("m16n8k32.row.col.s32.s8.s8.s32", "r");
}
/// Product of [16, 16] · [16, 8]: a lane holds bytes 4 t to 4 t + 3 of rows g and g + 8 of a, and
/// of a column of b.
__device__ inline void mma_i8_half(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(b));
#endif
}
/// From compute capability 8.9 on.
__device__ inline void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  MORACLE_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32", "f");
#endif
}

#undef MORACLE_MMA

}  // namespace moracle::cuda
