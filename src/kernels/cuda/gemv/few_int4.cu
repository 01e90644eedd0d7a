// Few tokens: weights in int4, activations in floats.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_int4() {
  return few_kernels<Int4Operand>();
}

}  // namespace moracle::cuda
