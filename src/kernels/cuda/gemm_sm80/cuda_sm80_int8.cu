// cuda-sm80, weights in int8, activations in floats.
#include "kernels/cuda/gemm_sm80/mma_kernel.cuh"

namespace moracle::cuda {

MmaKernels mma_int8(bool in_groups) {
  return in_groups ? mma_kernels<Int8Operand<true>>() : mma_kernels<Int8Operand<false>>();
}

}  // namespace moracle::cuda
