// cuda-sm90, weights in mxfp4 and mxfp8, activations in floats.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_mxfp4() {
  return wgmma_kernels<Fp4Folded>();
}
WgmmaKernels wgmma_mxfp8() {
  return wgmma_kernels<Fp8Folded>();
}

}  // namespace moracle::cuda
