// cuda-sm90, weights in int8, activations in floats.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_int8(bool in_groups) {
  return in_groups ? wgmma_kernels<Wgmma<Int8Operand<true>>>()
                   : wgmma_kernels<Wgmma<Int8Operand<false>>>();
}

}  // namespace moracle::cuda
