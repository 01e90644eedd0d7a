// cuda-sm90, weights and activations in fp8.
#include "kernels/cuda/gemm_sm90/wgmma_linear.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_fp8_fp8(bool in_groups) {
  return in_groups ? wgmma_kernels<Fp8Wgmma<true>>() : wgmma_kernels<Fp8Wgmma<false>>();
}

}  // namespace moracle::cuda
