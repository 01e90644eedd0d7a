// cuda-sm90, weights in fp8, activations in floats.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_fp8(bool in_groups) {
  return in_groups ? wgmma_kernels<Wgmma<Fp8Operand<true>>>()
                   : wgmma_kernels<Wgmma<Fp8Operand<false>>>();
}

}  // namespace moracle::cuda
