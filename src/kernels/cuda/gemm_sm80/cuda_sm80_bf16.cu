// cuda-sm80, weights in bf16.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_bf16() {
  return mma_kernels<Bf16Operand>();
}

}  // namespace moracle::cuda
