// Operands for wgmma: those of cuda-sm80, with native e4m3, and with power-of-two scales folded
// into the weights.
//
// Traits beyond those of cuda-sm80: kProducts is the instruction. kValues: `weights` gets scales
// and minimums of the lane's two rows, and returns values instead of codes. kPromoted: sums of a
// chunk of columns are added to f32 totals, with the chunk's scales if kGroups. kSmallGroups:
// groups may be smaller than a stage. kBlockGroups: each k-block is a group. kUnits: parts of a
// k-block that are unpacked one by one. kWide: no unpacking, registers for 192 rows. kFolded:
// `weights` gets factors of the lane's two rows instead of zero points. kTokenRows: tokens are the
// rows of the product (wgmma_token_rows.cuh).
#pragma once

#include "kernels/cuda/operands/e4m3_codes.h"
#include "kernels/cuda/operands/mma_operands.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

/// Operand of cuda-sm80 with unchanged arithmetic.
template <class Operand, WgmmaTypes kProducts_ = WgmmaTypes::kBf16>
struct Wgmma : Operand {
  static constexpr WgmmaTypes kProducts = kProducts_;
  static constexpr int kUnits = 1;
  static constexpr bool kPromoted = Operand::kGroups, kSmallGroups = true, kFolded = false;
  static constexpr bool kTokenRows = false, kValues = false, kBlockGroups = false;
  static constexpr bool kWide = kProducts == WgmmaTypes::kInt8;
};

using Int8Int8Wgmma = Wgmma<Int8Int8Operand<false>, WgmmaTypes::kInt8>;

/// Int4Operand with 1/64 of each code. Where tiles have few rows, unpacking bounds the products.
struct Int4By64Operand : Int4Operand {
  static constexpr int kZeroBase = 8;
  static constexpr float kUnit = 64;
  __device__ static uint32_t both(int value) {
    return as_bits(__float2bfloat162_rn(static_cast<float>(value) * -0x1p-6f));
  }
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&zero)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a, [&](uint32_t eight, int h, uint32_t(&pairs)[4]) {
      unpack_i4_by_64(eight, zero[h], pairs);
    });
  }
};

/// Groups of one k-block without zero points.
template <class Operand>
struct BlocksWgmma : Wgmma<Operand> {
  static constexpr bool kGroups = true, kZeros = false, kPromoted = true, kBlockGroups = true;
  template <int kWords>
  __device__ static void weights(const uint32_t (&codes)[kWords], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
    uint32_t zeros[2] = {};
    if constexpr (Operand::kZeros) zeros[0] = zeros[1] = Operand::both(Operand::kZeroBase);
    Operand::weights(codes, zeros, a);
  }
};

/// Weights in groups with minimums, or of half k-blocks: code · scale - minimum in f32, as the sum
/// of two bf16, which have 16 significant bits. Promoting sums of 16 columns takes as long as these
/// products, and minimums take sums of the activations. `Operand` has codes in bf16.
template <class Operand>
struct ValuesWgmma : Operand {
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kBf16;
  static constexpr int kUnits = 1, kTerms = 2;
  static constexpr bool kGroups = true, kZeros = false;
  static constexpr bool kPromoted = false, kSmallGroups = true, kFolded = false;
  static constexpr bool kTokenRows = false, kWide = false, kValues = true, kBlockGroups = false;
  template <int kWords>
  __device__ static void weights(const uint32_t (&codes)[kWords], float2 scales, float2 minimums,
                                 uint32_t (&a)[2][2][4]) {
    uint32_t zeros[2] = {}, exact[1][2][4];
    if constexpr (Operand::kZeros) zeros[0] = zeros[1] = Operand::both(Operand::kZeroBase);
    Operand::weights(codes, zeros, exact);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = i % 2 == 0 ? scales.x : scales.y;
        const float minimum = i % 2 == 0 ? minimums.x : minimums.y;
        const float2 code = __bfloat1622float2(as_bf16x2(exact[0][s][i]));
        split_f32({fmaf(code.x, scale, -minimum), fmaf(code.y, scale, -minimum)}, a[0][s][i],
                  a[1][s][i]);
      }
    }
  }
};

/// `Operand` for codes of e4m3 that were widened to bf16, with a scale per token.
template <class Operand>
struct WideCodes : Operand {
  static constexpr XScales kXScales = XScales::kToken;
};

// 16 columns of 16-bit codes lie together, so they are a unit.
struct HalfProducts : Bf16Products {
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kBf16;
  static constexpr int kSteps = 1, kUnits = 2, kCodeBits = 16;
  static constexpr bool kGroups = false, kScaled = false, kZeros = false;
  static constexpr bool kPromoted = false, kSmallGroups = false, kFolded = false;
  static constexpr bool kTokenRows = false, kValues = false, kBlockGroups = false;
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
  static constexpr int kTerms = 2;
  static constexpr bool kWide = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[2][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) split_f16(codes[i], a[0][0][i], a[1][0][i]);
  }
};

/// e4m3 on both sides. The tensor core adds with 13 fraction bits, so sums are promoted to f32
/// every stage of 128 columns. Weights in groups may meet one scale per token: it then multiplies
/// the total, and a promoted sum takes one instruction instead of two.
template <bool kInGroups, XScales kScales = kInGroups ? XScales::kGroup : XScales::kToken>
struct Fp8Wgmma {
  using Sum = float;
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kFp8;
  static constexpr int kXBytes = 1, kSteps = 1, kTerms = 1, kCodeBits = 8, kUnits = 1;
  static constexpr float kUnit = 1;
  static constexpr XScales kXScales = kScales;
  static constexpr bool kGroups = kInGroups, kScaled = true;
  static constexpr bool kZeros = false;
  static constexpr bool kPromoted = true, kSmallGroups = false, kFolded = false;
  static constexpr bool kWide = false, kTokenRows = false, kValues = false, kBlockGroups = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][0][i] = codes[i];
  }
};

/// 4-bit weights as e4m3, for activations in e4m3, whose columns are in the order of the codes
/// (wgmma_order). A stage of 128 columns has one scale for each output, because each of its sums is
/// promoted.
struct FourBitFp8Wgmma {
  using Sum = float;
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kFp8;
  static constexpr int kXBytes = 1, kSteps = 1, kTerms = 1, kCodeBits = 4, kUnits = 1;
  static constexpr XScales kXScales = XScales::kToken;
  static constexpr bool kGroups = true, kScaled = true;
  static constexpr bool kPromoted = true, kSmallGroups = false, kFolded = false;
  static constexpr bool kWide = false, kTokenRows = false, kValues = false, kBlockGroups = false;
  static constexpr bool kFourBitFp8 = true;

  /// `spread` turns the eight nibbles of row h into two times four columns.
  template <class Spread>
  __device__ static void spread_rows(const uint32_t (&codes)[2], uint32_t (&a)[1][1][4],
                                     Spread spread) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t fours[2];
      spread(codes[h], h, fours);
      a[0][0][h] = fours[0], a[0][0][2 + h] = fours[1];
    }
  }
};

/// Integers, in groups of multiples of 128 columns.
template <bool kWithZeros>
struct Int4Fp8Wgmma : FourBitFp8Wgmma {
  static constexpr float kUnit = kE4m3IntegerUnit;
  static constexpr int kZeroBase = -120;
  static constexpr bool kZeros = kWithZeros, kRebased = false;
  __device__ static uint32_t both(int value) { return static_cast<uint32_t>(-value) * 0x01010101u; }
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&zero)[2],
                                 uint32_t (&a)[1][1][4]) {
    spread_rows(codes, a, [&](uint32_t eight, int h, uint32_t(&fours)[2]) {
      if constexpr (kZeros) {
        const uint32_t biased = eight ^ 0x88888888u;
        fours[0] = e4m3_of_differences(biased, zero[h]);
        fours[1] = e4m3_of_differences(biased >> 4, zero[h]);
      } else {
        fours[0] = e4m3_of_nibbles(eight), fours[1] = e4m3_of_nibbles(eight >> 4);
      }
    });
  }
};

/// e2m1 in groups of 32 columns whose scales are powers of two. The scale of a stage is the largest
/// of its groups, and the codes of the other groups are smaller. kRebased: `weights` gets the words
/// of E2m1Table for the lane's two rows.
struct Fp4Fp8Wgmma : FourBitFp8Wgmma {
  static constexpr float kUnit = kE2m1Unit;
  static constexpr bool kZeros = false, kRebased = true;
  __device__ static void weights(const uint32_t (&codes)[2], const uint2 (&table)[2],
                                 uint32_t (&a)[1][1][4]) {
    spread_rows(codes, a, [&](uint32_t eight, int h, uint32_t(&fours)[2]) {
      spread_e2m1_codes(eight, table[h].x, table[h].y, fours);
    });
  }
};

/// e4m3 on both sides, scales of weights in blocks of 128 x 128, with tokens as rows. kSumStages:
/// stages whose sums are promoted together.
struct Fp8Tokens {
  static constexpr WgmmaTypes kProducts = WgmmaTypes::kFp8;
  static constexpr int kXBytes = 1, kCodeBits = 8;
  static constexpr XScales kXScales = XScales::kGroup;
  static constexpr bool kGroups = false, kZeros = false, kPromoted = true, kFolded = false;
  static constexpr bool kWide = false, kTokenRows = true, kValues = false, kBlockGroups = false;
  static constexpr int kSumStages = 1;
};

/// The same with one scale for each token and for each output. They multiply the totals, so sums of
/// two stages are promoted at once: additions take half as many cycles from products.
struct Fp8TokenChannels : Fp8Tokens {
  static constexpr XScales kXScales = XScales::kToken;
  static constexpr int kSumStages = 2;
};

/// `Operand` where 32 outputs share a scale, not 128: gates and outputs whose number is no multiple
/// of 128. The outputs of a tile then begin within a block of scales.
template <class Operand>
struct ScaledBy32 : Operand {
  static constexpr int kScaledOutputs = 32;
};

/// `Operand` for matrices without gates: warps store whole lines of y through shared memory. Where
/// tokens are the rows of the product, wgmma reads them from shared memory, too. Gated ones are not
/// faster so (bench/lab/fp8_blocks.md).
template <class Operand>
struct WholeLines : Operand {
  static constexpr bool kWholeLines = true;
};

/// The same where rows of x are contiguous for each tile: TMA loads them.
template <class Operand>
struct OrderedRows : WholeLines<Operand> {
  static constexpr bool kOrderedRows = true;
};

/// `Operand` for gates, where rows of x are contiguous for each tile: TMA loads them, and wgmma
/// reads them from shared memory.
template <class Operand>
struct OrderedGates : Operand {
  static constexpr bool kOrderedRows = true;
};

}  // namespace moracle::cuda
