// VectorOps::pack_bf16 and attend_bf16 with the dot products of AVX-512 BF16.
#if defined(__x86_64__)

#if !defined(__AVX512BF16__)
#error "attend_bf16_avx512_bf16.cc needs -mavx512bf16"
#endif

#include "kernels/cpu/simd/vector_attend_bf16.h"

namespace moracle::cpu {

bool pack_bf16_avx512_bf16(const AttendArgs& args) {
  return pack_bf16(args);
}
void attend_bf16_avx512_bf16(const AttendArgs& args) {
  attend_bf16(args);
}

}  // namespace moracle::cpu

#endif
