// Few tokens: weights in f16, activations in floats.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_f16() {
  return few_kernels<F16Operand>();
}

}  // namespace moracle::cuda
