// Operands with power-of-two scales folded into the weights, as in gemm_sm90/. Sums then need no
// scaling after every 32 columns, which takes longer than the products of a few tokens.
#pragma once

#include "kernels/cuda/operands/wgmma_operands.cuh"

namespace moracle::cuda {

/// e4m3 with exponents as scales. Pairs of every second column need fewer instructions than pairs
/// of neighbours, so the activations are paired in the same way. Groups with NaN have the exponent
/// of NaN (exponents.h).
struct FewFp8Folded : Fp8Folded {
  __device__ static void activations(const uint32_t (&eight)[4], uint32_t (&b)[4]) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      b[2 * s] = __byte_perm(eight[2 * s], eight[2 * s + 1], 0x5410);
      b[2 * s + 1] = __byte_perm(eight[2 * s], eight[2 * s + 1], 0x7632);
    }
  }
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&factor)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_bytes(codes, a, [&](uint32_t four, int h, uint32_t(&pairs)[2]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t size = (i == 0 ? four << 4 : four >> 4) & 0x07f007f0u;
        const uint32_t bits = size | ((i == 0 ? four << 8 : four) & 0x80008000u);
        pairs[i] = as_bits(__hmul2(as_bf16x2(bits), as_bf16x2(factor[h])));
      }
    });
  }
};

}  // namespace moracle::cuda
