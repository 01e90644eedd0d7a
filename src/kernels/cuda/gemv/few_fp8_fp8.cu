// Few tokens: weights and activations in fp8.
#include "kernels/cuda/gemv/gemv_kernels.cuh"

namespace moracle::cuda {

FewKernels few_fp8_fp8(bool in_groups) {
  return in_groups ? few_kernels<Fp8Fp8Operand<true>>() : few_kernels<Fp8Fp8Operand<false>>();
}

}  // namespace moracle::cuda
