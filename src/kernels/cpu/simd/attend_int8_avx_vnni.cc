// VectorOps::attend_int8 with products of AVX-VNNI, which take half as many instructions.
#if defined(__x86_64__)

#if !defined(__AVXVNNI__)
#error "attend_int8_avx_vnni.cc needs -mavxvnni"
#endif

#include "kernels/cpu/simd/vector_attend_int8.h"

namespace moracle::cpu {

void attend_int8_avx_vnni(const AttendArgs& args) {
  attend_int8(args);
}

}  // namespace moracle::cpu

#endif
