// AVX2: rows of int8 times codes with integer scales.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_steps.h"

namespace moracle::cpu {

void dot_steps_i4_avx2(const StepDotArgs& b) {
  multiply_steps<CodeSet::kAny>(b);
}
void dot_steps_u5_avx2(const StepDotArgs& b) {
  multiply_steps<CodeSet::kUnsigned5>(b);
}
void dot_steps_i6_avx2(const StepDotArgs& b) {
  multiply_steps<CodeSet::kSigned6>(b);
}
void dot_steps_iq4_avx2(const StepDotArgs& b) {
  multiply_steps<CodeSet::kIq4>(b);
}

}  // namespace moracle::cpu

#endif
