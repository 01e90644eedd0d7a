// Operands with scales of few bits folded into the weights. Sums then need no scaling after every
// 32 columns, which takes a GEMV longer than the products.
#pragma once

#include "kernels/cuda/operands/wgmma_operands.cuh"

namespace moracle::cuda {

// Folded scales are 2^-40 too small; the epilogue multiplies by kUnit. Values of codes keep all
// their bits for scales from 2^-80 to 2^41.
struct FoldedProducts : Bf16Products {
  static constexpr float kUnit = 1099511627776.0f;  // 2^40
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kBf16;
  static constexpr int kUnits = 1;
  static constexpr bool kGroups = true, kScaled = true, kZeros = false;
  static constexpr bool kPromoted = false, kFolded = true, kWide = false, kTokenRows = false;
  static constexpr bool kValues = false, kBlockGroups = false;
};
/// Turns the exponents of a lane's two rows into pairs of 2^(exponent + kUp - 167) in bf16. kUp is
/// the difference of the biases of bf16 and of the codes. Scales above 2^41, and the exponent of
/// NaN, give infinity: the outputs are then not finite. Two loads and a product with a sum keep
/// busy what unpacking leaves idle.
template <int kUp>
__device__ inline void folded_factors(const uint8_t* exponents, uint32_t (&factors)[2]) {
  constexpr uint32_t kOne = 0x00800080u, kAdded = kUp - 40;
#pragma unroll
  for (int h = 0; h < 2; ++h)
    factors[h] = min(uint32_t{exponents[h]}, 255 - kAdded) * kOne + kAdded * kOne;
}

/// e2m1 with exponents as scales. `factors`: of the scales of a lane's two rows, in shared memory.
struct Fp4Folded : FoldedProducts {
  static constexpr int kCodeBits = 4;
  __device__ static void factors(const uint8_t* scales, uint32_t (&to)[2]) {
    folded_factors<126>(scales, to);
  }
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&factor)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a, [&](uint32_t eight, int h, uint32_t(&pairs)[4]) {
      spread_e2m1_bf16(eight, pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = as_bits(__hmul2(as_bf16x2(pair), as_bf16x2(factor[h])));
    });
  }
};

/// e2m1 in groups of 16 columns, with e4m3 scales: their products have six significant bits.
struct Fp4Scaled : Fp4Folded {
  static constexpr float kUnit = 0x1p66f;  // codes are 126 binades too low, scales 60 too high
  static constexpr bool kRowFactors = true;
  __device__ static void factors(const uint8_t* scales, uint32_t (&to)[2]) {
    const float2 two = read_e4m3_scales(scales);
    to[0] = as_bits(__float2bfloat162_rn(two.x * 0x1p60f));
    to[1] = as_bits(__float2bfloat162_rn(two.y * 0x1p60f));
  }
};

/// 4-bit codes with folded scales, for GEMV with activations in e4m3, which are exact in bf16.
template <class Operand>
struct ByFp8 : Operand {
  static constexpr int kXBytes = 1;
  static constexpr XScales kXScales = XScales::kToken;
  __device__ static void activations(const uint32_t (&eight)[2], uint32_t (&b)[4]) {
    uint32_t first[2], second[2];
    unpack_e4m3_bf16(eight[0], first);
    unpack_e4m3_bf16(eight[1], second);
    b[0] = first[0], b[1] = first[1], b[2] = second[0], b[3] = second[1];
  }
};

/// e4m3 with exponents as scales. Groups with NaN have the exponent of NaN (exponents.h).
/// Activations are bf16, or e4m3 in groups of 32 whose values were rounded to it: these, too, are
/// exact in bf16.
struct Fp8Folded : FoldedProducts {
  static constexpr int kCodeBits = 8;
  __device__ static void factors(const uint8_t* scales, uint32_t (&to)[2]) {
    folded_factors<120>(scales, to);
  }
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&factor)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_bytes(codes, a, [&](uint32_t four, int h, uint32_t(&pairs)[2]) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t high = __byte_perm(four, 0, i == 0 ? 0x1404 : 0x3424);
        const uint32_t bits = (high & 0x80008000u) | (high >> 4 & 0x07f007f0u);
        pairs[i] = as_bits(__hmul2(as_bf16x2(bits), as_bf16x2(factor[h])));
      }
    });
  }
};

/// e4m3 with exponents as scales, for GEMV. Pairs of every second column need fewer instructions
/// than pairs of neighbours, so the activations are paired in the same way. Groups with NaN have
/// the exponent of NaN (exponents.h).
struct Fp8FoldedPairs : Fp8Folded {
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
