// Skinny GEMMs of an operand.
#include "kernels/cuda/gemm_skinny/skinny_kernel.cuh"

namespace moracle::cuda {

template <class Operand>
SkinnyKernels skinny_kernels() {
  return {{skinny_linear<Operand, 4>, skinny_linear<Operand, 8>}};
}

}  // namespace moracle::cuda
