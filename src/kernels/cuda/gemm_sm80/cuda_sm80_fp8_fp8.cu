// cuda-sm80, weights and activations in fp8.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_fp8_fp8(bool in_groups) {
  return in_groups ? mma_kernels<Fp8Fp8Operand<true>>() : mma_kernels<Fp8Fp8Operand<false>>();
}

}  // namespace moracle::cuda
