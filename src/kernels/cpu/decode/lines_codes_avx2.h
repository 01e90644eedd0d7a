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

}  // namespace moracle::cpu
