// Unpacks codes to row blocks of int8 and f32 for AVX2.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/unpack.h"

namespace moracle::cpu {

void unpack_i4_to_i8_avx2(const UnpackBlocksArgs& c) {
  unpack_to_int8<i4_bytes>(c);
}
void unpack_e2m1_to_i8_avx2(const UnpackBlocksArgs& c) {
  unpack_to_int8<e2m1_bytes>(c);
}
void unpack_i4_to_f32_avx2(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<4>>(c);
}
void unpack_i8_to_f32_avx2(const UnpackBlocksArgs& c) {
  unpack_to_f32<IntCode<8>>(c);
}
void unpack_e4m3_to_f32_avx2(const UnpackBlocksArgs& c) {
  unpack_to_f32<E4M3Code>(c);
}
void unpack_e2m1_to_f32_avx2(const UnpackBlocksArgs& c) {
  unpack_to_f32<E2M1Code>(c);
}

}  // namespace moracle::cpu

#endif
