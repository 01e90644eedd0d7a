// AVX2: rows of int8 times codes with integer or f16 scales.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_steps.h"

namespace moracle::cpu {

void dot_steps_i4_s8_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithSteps<StoredCodes<CodeSet::kAny>>>(b);
}
void dot_steps_u5_s8_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithSteps<StoredCodes<CodeSet::kUnsigned5>>>(b);
}
void dot_steps_i6_s8_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithSteps<StoredCodes<CodeSet::kSigned6>>>(b);
}
void dot_steps_iq4_s8_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithSteps<StoredCodes<CodeSet::kIq4>>>(b);
}
void dot_steps_i4_s16_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithHalves<StoredCodes<CodeSet::kAny>>>(b);
}
void dot_steps_iq4_s16_r4_avx2(const StepDotArgs& b) {
  multiply_steps<WithHalves<StoredCodes<CodeSet::kIq4>>>(b);
}

}  // namespace moracle::cpu

#endif
