// Few tokens: weights in bf16, activations in floats.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_bf16() {
  return few_kernels<Bf16Operand>();
}

}  // namespace moracle::cuda
