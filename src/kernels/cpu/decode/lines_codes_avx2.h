// Code kernels that the AVX2 and the AVX-VNNI tables share.
#pragma once

#include "kernels/cpu/gemm/lines.h"

namespace moracle::cpu {

void f32_by_i4_avx2(const LineBlock& b);
void f32_by_i8_avx2(const LineBlock& b);
void f32_by_e4m3_avx2(const LineBlock& b);
void f32_by_e2m1_avx2(const LineBlock& b);
void f32_by_bf16_avx2(const LineBlock& b);
void f32_by_f16_avx2(const LineBlock& b);

using CodeKernel = void (*)(const LineBlock&);
inline constexpr CodeKernels code_kernels_avx2(CodeKernel int8_by_i4, CodeKernel int8_by_e2m1) {
  return {int8_by_i4,       int8_by_e2m1,     f32_by_i4_avx2,   f32_by_i8_avx2,
          f32_by_e4m3_avx2, f32_by_e2m1_avx2, f32_by_bf16_avx2, f32_by_f16_avx2};
}

}  // namespace moracle::cpu
