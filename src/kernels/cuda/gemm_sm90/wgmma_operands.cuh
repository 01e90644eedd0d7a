// Operands for wgmma: those of cuda-sm80, with native e4m3, and with power-of-two scales folded
// into the weights.
//
// Traits beyond those of cuda-sm80: kProducts is the instruction. kPromoted: sums of a chunk of
// columns are added to f32 totals, with the chunk's scales if kGroups. kSmallGroups: groups may be
// smaller than a stage. kUnits: parts of a k-block that are unpacked one by one. kWide: no
// unpacking, registers for 192 rows. kFolded: `weights` gets factors of the lane's two rows instead
// of zero points. kTokenRows: tokens are the rows of the product (wgmma_tokens.cuh).
#pragma once

#include "kernels/cuda/gemm_sm80/mma_operands.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_args.h"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

/// Operand of cuda-sm80 with unchanged arithmetic.
template <class Operand, WgmmaTypes kProducts_ = WgmmaTypes::kBf16>
struct Wgmma : Operand {
  static constexpr WgmmaTypes kProducts = kProducts_;
  static constexpr int kUnits = 1;
  static constexpr bool kPromoted = Operand::kGroups, kSmallGroups = true, kFolded = false;
  static constexpr bool kTokenRows = false;
  static constexpr bool kWide = kProducts == WgmmaTypes::kInt8;
};

// 16 columns of 16-bit codes lie together, so they are a unit.
struct HalfProducts : Bf16Products {
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kBf16;
  static constexpr int kSteps = 1, kUnits = 2, kCodeBits = 16;
  static constexpr bool kGroups = false, kScaled = false, kZeros = false;
  static constexpr bool kPromoted = false, kSmallGroups = false, kFolded = false;
  static constexpr bool kTokenRows = false;
};
struct Bf16Wgmma : HalfProducts {
  static constexpr bool kWide = true;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][0][i] = codes[i];
  }
};
/// f16 weights as sums of two bf16.
struct F16Wgmma : HalfProducts {
  static constexpr int kParts = 2;
  static constexpr bool kWide = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[2][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) split_f16(codes[i], a[0][0][i], a[1][0][i]);
  }
};

/// e4m3 on both sides. The tensor core adds with 13 fraction bits, so sums are promoted to f32
/// every stage.
template <Fp8Scales kScales>
struct Fp8Wgmma {
  using Sum = float;
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kFp8;
  static constexpr int kXBytes = 1, kSteps = 1, kParts = 1, kCodeBits = 8, kUnits = 1;
  static constexpr float kUnit = 1;
  static constexpr XScales kXScales =
      kScales == Fp8Scales::kRows ? XScales::kToken : XScales::kGroup;
  static constexpr bool kGroups = kScales == Fp8Scales::kGroups, kScaled = true;
  static constexpr bool kZeros = false;
  static constexpr bool kPromoted = true, kSmallGroups = false, kFolded = false;
  static constexpr bool kWide = false, kTokenRows = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][0][i] = codes[i];
  }
};

/// e4m3 on both sides, scales of weights in blocks of 128 x 128, with tokens as rows.
struct Fp8Tokens {
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kFp8;
  static constexpr int kXBytes = 1, kCodeBits = 8;
  static constexpr XScales kXScales = XScales::kGroup;
  static constexpr bool kGroups = false, kZeros = false, kPromoted = true, kFolded = false;
  static constexpr bool kWide = false, kTokenRows = true;
};

// Folded scales are 2^-40 too small; the epilogue multiplies by kUnit. Values of codes keep all
// their bits for scales from 2^-80 to 2^41.
struct FoldedProducts : Bf16Products {
  static constexpr float kUnit = 1099511627776.0f;  // 2^40
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kBf16;
  static constexpr int kUnits = 1;
  static constexpr bool kGroups = true, kScaled = true, kZeros = false;
  static constexpr bool kPromoted = false, kFolded = true, kWide = false, kTokenRows = false;
};
/// Returns a pair of 2^(exponent + kUp - 167) in bf16. kUp is the difference of the biases of bf16
/// and of the codes. Scales above 2^41, and the exponent of NaN, give infinity, and outputs that
/// are not finite.
template <int kUp>
__device__ inline uint32_t folded_factor(uint32_t exponent) {
  return min(exponent + (kUp - 40), 255u) * 0x00800080u;
}

/// e2m1 with exponents as scales.
struct Fp4Folded : FoldedProducts {
  static constexpr int kCodeBits = 4;
  __device__ static uint32_t factor(uint32_t exponent) { return folded_factor<126>(exponent); }
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&factor)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a, [&](uint32_t eight, int h, uint32_t(&pairs)[4]) {
      spread_e2m1_bf16(eight, pairs);
#pragma unroll
      for (uint32_t& pair : pairs) pair = as_bits(__hmul2(as_bf16x2(pair), as_bf16x2(factor[h])));
    });
  }
};

/// e4m3 with exponents as scales. Groups with NaN have the exponent of NaN (exponents.h).
/// Activations are bf16, or e4m3 in groups of 32 whose values were rounded to it: these, too, are
/// exact in bf16.
struct Fp8Folded : FoldedProducts {
  static constexpr int kCodeBits = 8;
  __device__ static uint32_t factor(uint32_t exponent) { return folded_factor<120>(exponent); }
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

}  // namespace moracle::cuda
