// cuda-sm80, integer weights and activations in int8.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_int8_int8(bool in_groups) {
  return in_groups ? mma_kernels<Int8Int8Operand<true>>() : mma_kernels<Int8Int8Operand<false>>();
}
MmaKernels mma_int4_int8() {
  return mma_kernels<Int4Int8Operand>();
}

}  // namespace moracle::cuda
