// AVX2. AVX-VNNI shares the f32 kernels of this file.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_int16_avx2.h"
#include "kernels/cpu/ukernels/dot_maddubs_avx2.h"

namespace moracle::cpu {
namespace {

/// Few rows of f32 times codes, which every block of rows unpacks. kSubtracts: codes have zero
/// points.
template <class Code, bool kSubtracts = false>
struct CodesDot : F32Dot {
  static constexpr int kCalls = Code::kColumns;
  static constexpr bool kHasRare = Code::kHasRare;
  static constexpr bool kZeros = kSubtracts;
  MORACLE_VECTOR_INLINE static Vec weights(const std::byte* p, int column) {
    if constexpr (kHasRare) return Code::normal_value(load_bits(p), column, Vec{});
    return rare_weights(p, column);
  }
  MORACLE_VECTOR_INLINE static Vec rare_weights(const std::byte* p, int column) {
    return Code::value(load_bits(p), column, Vec{});
  }
  MORACLE_VECTOR_INLINE static Vec finish(Vec sum) { return sum * Code::kScale; }
};

template <class Code>
void multiply_integers(const DotArgs& b) {
  b.w_zero[0] == nullptr ? multiply<CodesDot<Code>>(b) : multiply<CodesDot<Code, true>>(b);
}

}  // namespace

void dot_x_i8_w_i4_r32_avx2(const DotArgs& b) {
  multiply_codes<I4Bytes>(b);
}
void dot_x_i8_w_e2m1_r32_avx2(const DotArgs& b) {
  multiply_codes<E2M1Bytes>(b);
}
void dot_x_i8_w_i8_r32_avx2(const DotArgs& b) {
  multiply<Int8Dot>(b);
}
void dot_x_i16_w_i4_r32_avx2(const DotArgs& b) {
  multiply<WordsDot<I4Words>>(b);
}
void dot_x_i16_w_i8_r32_avx2(const DotArgs& b) {
  multiply<WordsDot<I8Words>>(b);
}
void dot_x_i16_w_e2m1_r32_avx2(const DotArgs& b) {
  multiply<WordsDot<E2M1Words>>(b);
}
void dot_x_f32_w_bf16_r32_avx2(const DotArgs& b) {
  multiply<Bf16Codes>(b);
}
void dot_x_f32_w_f16_r32_avx2(const DotArgs& b) {
  multiply<F16Codes>(b);
}
void dot_x_f32_w_f32_r32_avx2(const DotArgs& b) {
  multiply<F32Dot>(b);
}
void dot_x_f32_w_i4_r6_avx2(const DotArgs& b) {
  multiply_integers<IntCode<4>>(b);
}
void dot_x_f32_w_i8_r6_avx2(const DotArgs& b) {
  multiply_integers<IntCode<8>>(b);
}
void dot_x_f32_w_e4m3_r6_avx2(const DotArgs& b) {
  multiply<CodesDot<E4M3Code>>(b);
}
void dot_x_f32_w_e2m1_r6_avx2(const DotArgs& b) {
  multiply<CodesDot<E2M1Code>>(b);
}

}  // namespace moracle::cpu

#endif
