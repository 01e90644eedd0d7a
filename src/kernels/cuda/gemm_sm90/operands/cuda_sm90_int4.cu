// cuda-sm90, weights in int4, activations in floats.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_int4() {
  return wgmma_kernels<Wgmma<Int4Operand>>();
}

}  // namespace moracle::cuda
