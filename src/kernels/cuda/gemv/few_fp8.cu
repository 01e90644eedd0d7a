// Few tokens: weights in fp8, activations in floats.
#include "kernels/cuda/gemv/gemv_kernels.cuh"
#include "kernels/cuda/operands/folded_operands.cuh"

namespace moracle::cuda {

FewKernels few_fp8(bool in_groups, bool exponents) {
  if (exponents) return few_kernels<FewFp8Folded>();
  return in_groups ? few_kernels<Fp8Operand<true>>() : few_kernels<Fp8Operand<false>>();
}

}  // namespace moracle::cuda
