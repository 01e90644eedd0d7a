// cuda-sm80, weights in f16.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_f16() {
  return mma_kernels<F16Operand>();
}

}  // namespace moracle::cuda
