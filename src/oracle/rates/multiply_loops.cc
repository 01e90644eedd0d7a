#include "oracle/rates/multiply_loops.h"

#if defined(__x86_64__)

namespace moracle::cpu {

// Registers that the asm changes. The compiler keeps live vectors in xmm0–15 only.
#define MORACLE_CLOBBERS                                                                   \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"

// Twelve independent sums: an instruction takes four or five cycles, and two may start per cycle.
// All operands are 0; no CPU with these instructions is by itself faster or slower for it.
#define MORACLE_ZERO(N) "vpxor %%xmm" #N ", %%xmm" #N ", %%xmm" #N "\n"
#define MORACLE_ONE(OP, R, N) OP " %%" R "14, %%" R "15, %%" R #N "\n"
#define MORACLE_MULTIPLY(OP, R)                                                                   \
  if (rounds < 1) return;                                                                         \
  __asm__ volatile(                                                                               \
      MORACLE_ZERO(0) MORACLE_ZERO(1) MORACLE_ZERO(2) MORACLE_ZERO(3) MORACLE_ZERO(4)             \
          MORACLE_ZERO(5) MORACLE_ZERO(6) MORACLE_ZERO(7) MORACLE_ZERO(8) MORACLE_ZERO(9)         \
              MORACLE_ZERO(10) MORACLE_ZERO(11) MORACLE_ZERO(14)                                  \
                  MORACLE_ZERO(15) ".p2align 5\n1:\n" MORACLE_ONE(OP, R, 0) MORACLE_ONE(OP, R, 1) \
                      MORACLE_ONE(OP, R, 2) MORACLE_ONE(OP, R, 3) MORACLE_ONE(OP, R, 4)           \
                          MORACLE_ONE(OP, R, 5) MORACLE_ONE(OP, R, 6) MORACLE_ONE(OP, R, 7)       \
                              MORACLE_ONE(OP, R, 8) MORACLE_ONE(OP, R, 9) MORACLE_ONE(OP, R, 10)  \
                                  MORACLE_ONE(OP, R, 11) "dec %0\njnz 1b\nvzeroupper\n"           \
      : "+r"(rounds)                                                                              \
      :                                                                                           \
      : MORACLE_CLOBBERS)

void multiply_f32_avx2(int64_t rounds) {
  MORACLE_MULTIPLY("vfmadd231ps", "ymm");
}
void multiply_int8_avx2(int64_t rounds) {
  MORACLE_MULTIPLY("vpmaddwd", "ymm");
}
void multiply_bytes_avx2(int64_t rounds) {
  MORACLE_MULTIPLY("vpmaddubsw", "ymm");
}
void multiply_int8_avx_vnni(int64_t rounds) {
  MORACLE_MULTIPLY("%{vex%} vpdpbusd", "ymm");
}
void multiply_words_avx_vnni(int64_t rounds) {
  MORACLE_MULTIPLY("%{vex%} vpdpwssd", "ymm");
}
void multiply_f32_avx512(int64_t rounds) {
  MORACLE_MULTIPLY("vfmadd231ps", "zmm");
}
void multiply_int8_avx512_vnni(int64_t rounds) {
  MORACLE_MULTIPLY("vpdpbusd", "zmm");
}
void multiply_bf16_avx512(int64_t rounds) {
  MORACLE_MULTIPLY("vdpbf16ps", "zmm");
}

}  // namespace moracle::cpu

#endif
