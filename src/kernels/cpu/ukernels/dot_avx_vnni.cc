// AVX2 with AVX-VNNI: vpdpbusd adds four int8 products per lane, vpdpwssd two int16 products.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_int16_avx2.h"

namespace moracle::cpu {
void dot_x_i8_w_i8_r32_avxvnni(const DotArgs& b) {
  multiply<Int8Dot>(b);
}
void dot_x_i8_w_i4_r6_avxvnni(const DotArgs& b) {
  multiply<NibblesDot<I4Bytes>>(b);
}
void dot_x_i8_w_e2m1_r6_avxvnni(const DotArgs& b) {
  multiply<NibblesDot<E2M1Bytes>>(b);
}
void dot_x_i16_w_i4_r32_avxvnni(const DotArgs& b) {
  multiply<WordsDot<I4Words>>(b);
}
void dot_x_i16_w_i8_r32_avxvnni(const DotArgs& b) {
  multiply<WordsDot<I8Words>>(b);
}
void dot_x_i16_w_e2m1_r32_avxvnni(const DotArgs& b) {
  multiply<WordsDot<E2M1Words>>(b);
}

}  // namespace moracle::cpu

#endif
