// cuda-sm80, weights in fp4, activations in floats or int8.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_fp4() {
  return mma_kernels<Fp4Operand>();
}
MmaKernels mma_fp4_int8() {
  return mma_kernels<Fp4Int8Operand>();
}

}  // namespace moracle::cuda
