// Code kernels that the AVX2 and the AVX-VNNI tables share.
#pragma once

#include "kernels/cpu/ukernels/ukernels.h"

namespace moracle::cpu {

void f32_by_i4_avx2(const LineBlock& b);
void f32_by_i8_avx2(const LineBlock& b);
void f32_by_e4m3_avx2(const LineBlock& b);
void f32_by_e2m1_avx2(const LineBlock& b);
void f32_by_bf16_avx2(const LineBlock& b);
void f32_by_f16_avx2(const LineBlock& b);
void int16_by_i4_avx2(const LineBlock& b);
void int16_by_i8_avx2(const LineBlock& b);
void int16_by_e2m1_avx2(const LineBlock& b);
void int16_by_i4_avx_vnni(const LineBlock& b);
void int16_by_i8_avx_vnni(const LineBlock& b);
void int16_by_e2m1_avx_vnni(const LineBlock& b);
/// RowConverters::f32_to_int16
void f32_to_int16_avx2(const float* from, int64_t count, int64_t run, std::byte* to, int32_t* sums,
                       float* scales);

using CodeKernel = void (*)(const LineBlock&);
/// Integer kernels of one instruction set, in the order of CodeKernels, and the f32 kernels of
/// AVX2.
struct IntegerKernels {
  CodeKernel int8_by_i4, int8_by_e2m1, int16_by_i4, int16_by_i8, int16_by_e2m1;
};
inline constexpr CodeKernels code_kernels_avx2(const IntegerKernels& k) {
  return {k.int8_by_i4,     k.int8_by_e2m1,   f32_by_i4_avx2,   f32_by_i8_avx2,
          f32_by_e4m3_avx2, f32_by_e2m1_avx2, f32_by_bf16_avx2, f32_by_f16_avx2,
          k.int16_by_i4,    k.int16_by_i8,    k.int16_by_e2m1};
}

}  // namespace moracle::cpu
