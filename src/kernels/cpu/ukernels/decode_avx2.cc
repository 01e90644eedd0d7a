// Decodes codes to row blocks of int8 and f32 for AVX2.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/decode.h"

namespace moracle::cpu {

void decode_i4_to_i8_avx2(const DecodeArgs& c) {
  decode_to_int8<i4_bytes>(c);
}
void decode_e2m1_to_i8_avx2(const DecodeArgs& c) {
  decode_to_int8<e2m1_bytes>(c);
}
void decode_i4_to_f32_avx2(const DecodeArgs& c) {
  decode_to_f32<IntCode<4>>(c);
}
void decode_i8_to_f32_avx2(const DecodeArgs& c) {
  decode_to_f32<IntCode<8>>(c);
}
void decode_e4m3_to_f32_avx2(const DecodeArgs& c) {
  decode_to_f32<E4M3Code>(c);
}
void decode_e2m1_to_f32_avx2(const DecodeArgs& c) {
  decode_to_f32<E2M1Code>(c);
}

}  // namespace moracle::cpu

#endif
