// cuda-sm80, weights in int4, activations in floats.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_int4() {
  return mma_kernels<Int4Operand>();
}

}  // namespace moracle::cuda
