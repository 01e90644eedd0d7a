// VectorOps::attend_int8 with products of AVX-512 VNNI, which take half as many instructions.
#if defined(__x86_64__)

#if !defined(__AVX512VNNI__)
#error "attend_int8_avx512_vnni.cc needs -mavx512vnni"
#endif

#include "kernels/cpu/simd/vector_attend_int8.h"

namespace moracle::cpu {

void attend_int8_avx512_vnni(const AttendArgs& args) {
  attend_int8(args);
}

}  // namespace moracle::cpu

#endif
