// Few tokens: integer weights, activations in int8.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_int8_int8(bool in_groups) {
  return in_groups ? few_kernels<Int8Int8Operand<true>>() : few_kernels<Int8Int8Operand<false>>();
}
FewKernels few_int4_int8() {
  return few_kernels<Int4Int8Operand>();
}

}  // namespace moracle::cuda
