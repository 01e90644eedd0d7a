// cuda-sm90, weights in f16.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_f16() {
  return wgmma_kernels<F16Wgmma>();
}

}  // namespace moracle::cuda
