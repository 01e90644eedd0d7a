// Few tokens: weights in int8, activations in floats.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_int8(bool in_groups) {
  return in_groups ? few_kernels<Int8Operand<true>>() : few_kernels<Int8Operand<false>>();
}

}  // namespace moracle::cuda
