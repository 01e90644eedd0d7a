// Few tokens: weights in fp4, activations in floats or int8.
#include "kernels/cuda/gemv/gemv_kernels.cuh"
#include "kernels/cuda/operands/wgmma_operands.cuh"

namespace moracle::cuda {

FewKernels few_fp4(bool exponents) {
  return exponents ? few_kernels<Fp4Folded>() : few_kernels<Fp4Operand>();
}
FewKernels few_fp4_int8() {
  return few_kernels<Fp4Int8Operand>();
}

}  // namespace moracle::cuda
