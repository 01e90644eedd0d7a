#include "kernels/cpu/simd/vector_ops.h"

#include "moracle/checkpoint.h"
#include "moracle/oracle.h"

namespace moracle::cpu {

// The numbers that vector_activate.h switches on.
static_assert(static_cast<int>(Activation::kSilu) == 0 && static_cast<int>(Activation::kGelu) == 1);
static_assert(static_cast<int>(Activation::kGeluTanh) == 2 &&
              static_cast<int>(Activation::kRelu2) == 3);
static_assert(static_cast<int>(Activation::kSwigluOai) == 4 &&
              static_cast<int>(Activation::kSwigluStep) == 5);
static_assert(static_cast<int>(Activation::kSiluNoMul) == 6 &&
              static_cast<int>(Activation::kGeluNoMul) == 7);
static_assert(static_cast<int>(Activation::kGeluTanhNoMul) == 8 &&
              static_cast<int>(Activation::kRelu2NoMul) == 9);

ActivationArgs activation_args(const ActivationSpec& spec) {
  return {static_cast<int>(spec.function), spec.alpha, spec.beta, spec.limit};
}

const VectorOps& vector_ops() {
#if defined(__x86_64__)
  static const Isa isa = Machine::here().cpu.isa;
  if (missing(Isa::kAvx512 | Isa::kAvx2, isa) == Isa::kNone) return kAvx512VectorOps;
  if (missing(Isa::kAvx2, isa) == Isa::kNone) return kAvx2VectorOps;
#endif
  return kPortableVectorOps;
}

}  // namespace moracle::cpu
