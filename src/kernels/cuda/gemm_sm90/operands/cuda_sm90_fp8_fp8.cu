// cuda-sm90, weights and activations in fp8.
#include "kernels/cuda/gemm_sm90/wgmma_kernel.cuh"

namespace moracle::cuda {

WgmmaKernels wgmma_fp8_fp8(Fp8Scales scales) {
  using Groups = Fp8Wgmma<Fp8Scales::kGroups>;
  if (scales == Fp8Scales::kBlocks) return wgmma_kernels<Groups, Fp8Tokens>();
  return scales == Fp8Scales::kGroups ? wgmma_kernels<Groups>()
                                      : wgmma_kernels<Fp8Wgmma<Fp8Scales::kRows>>();
}

}  // namespace moracle::cuda
