// cuda-sm90, weights in bf16.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_bf16() {
  return wgmma_kernels<Bf16Wgmma>();
}

}  // namespace moracle::cuda
