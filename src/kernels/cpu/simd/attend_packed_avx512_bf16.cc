// VectorOps::attend_pack and attend_packed with the dot products of AVX-512 BF16.
#if defined(__x86_64__)

#if !defined(__AVX512BF16__)
#error "attend_packed_avx512_bf16.cc needs -mavx512bf16"
#endif

// g++ 12 warns about the deliberately undefined operands in its own avx512 headers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "kernels/cpu/simd/vector_attend_packed.h"

namespace moracle::cpu {

bool attend_pack_avx512_bf16(const AttendArgs& args) {
  return attend_pack(args);
}
void attend_packed_avx512_bf16(const AttendArgs& args) {
  attend_packed(args);
}

}  // namespace moracle::cpu

#endif
