// cuda-sm90, weights and activations in int8.
#include "kernels/cuda/gemm_sm90/wgmma_linear.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_int8_int8() {
  return wgmma_kernels<Wgmma<Int8Int8Operand<false>, WgmmaTypes::kInt8>>();
}

}  // namespace moracle::cuda
