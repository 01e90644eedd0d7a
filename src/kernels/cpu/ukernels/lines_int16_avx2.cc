// Rows of int16 times codes for AVX2: vpmaddwd and an addition.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_int16_avx2.h"
#include "kernels/cpu/ukernels/lines_codes_avx2.h"

namespace moracle::cpu {

void int16_by_i4_avx2(const LineBlock& b) {
  multiply_words<I4Words>(b);
}
void int16_by_i8_avx2(const LineBlock& b) {
  multiply_words<I8Words>(b);
}
void int16_by_e2m1_avx2(const LineBlock& b) {
  multiply_words<E2M1Words>(b);
}

}  // namespace moracle::cpu

#endif
