// VectorOps::attend_codes with products of AVX-VNNI, which take half as many instructions.
#if defined(__x86_64__)

#if !defined(__AVXVNNI__)
#error "attend_codes_avx_vnni.cc needs -mavxvnni"
#endif

#include "kernels/cpu/simd/vector_attend_codes.h"

namespace moracle::cpu {

void attend_codes_avx_vnni(const AttendArgs& args) {
  attend_codes(args);
}

}  // namespace moracle::cpu

#endif
