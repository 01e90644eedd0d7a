// cuda-sm80, weights in fp8, activations in floats.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_fp8(bool in_groups) {
  return in_groups ? mma_kernels<Fp8Operand<true>>() : mma_kernels<Fp8Operand<false>>();
}

}  // namespace moracle::cuda
