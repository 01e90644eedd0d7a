// Operands of each scheme. A lane's share of a k-block of 16 rows and 32 columns becomes the first
// operand of kSteps instructions, kTerms times if a weight is a sum. Eight columns of a token
// become the second operand.
#pragma once

#include "kernels/cuda/operands/unpack.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

/// True for 4-bit weights that wgmma multiplies in e4m3, and for those whose scales move into the
/// codes (wgmma_operands.cuh).
template <class Operand>
inline constexpr bool kIsFourBitFp8 = requires {
  Operand::kFourBitFp8;
};
template <class Operand>
inline constexpr bool kIsRebased = [] {
  if constexpr (kIsFourBitFp8<Operand>) return Operand::kRebased;
  return false;
}();

/// Scales are e4m3 numbers, and rows have factors (layout/mma16.h).
template <class Operand>
inline constexpr bool kHasRowFactors = requires {
  Operand::kRowFactors;
};

/// Scales of activations: none, one per token, or one per group of columns.
enum class XScales { kNone, kToken, kGroup };

// bf16 products with unchanged activations.
struct Bf16Products {
  using Sum = float;
  static constexpr int kXBytes = 2, kSteps = 2, kTerms = 1;
  static constexpr float kUnit = 1;  ///< value of a sum of 1
  static constexpr XScales kXScales = XScales::kNone;
  static constexpr bool kMinimums = false, kHalves = false;
  static constexpr uint32_t kOnes = 0x3f803f80u;
  __device__ static uint32_t both(int value) { return both_bf16(value); }
  __device__ static void activations(const uint32_t (&eight)[4], uint32_t (&b)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = eight[i];
  }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_bf16(d, a, b0, b1);
  }
};

// f16 products of 8-bit codes on both sides.
template <XScales kScales>
struct Fp8Products {
  using Sum = float;
  static constexpr int kXBytes = 1, kSteps = 2, kTerms = 1;
  static constexpr float kUnit = 1;
  static constexpr XScales kXScales = kScales;
  static constexpr bool kMinimums = false, kHalves = false;
  static constexpr uint32_t kOnes = 0x3c003c00u;
  __device__ static uint32_t both(int value) { return both_f16(value); }
  __device__ static void activations(const uint32_t (&eight)[2], uint32_t (&b)[4]) {
    uint32_t first[2], second[2];
    unpack_e4m3(eight[0], first);
    unpack_e4m3(eight[1], second);
    b[0] = first[0], b[1] = first[1], b[2] = second[0], b[3] = second[1];
  }
  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_f16(d, a, b0, b1);
  }
};

// int8 products, accumulated exactly.
struct IntegerProducts {
  using Sum = int32_t;
  static constexpr int kXBytes = 1, kSteps = 1, kTerms = 1;
  static constexpr XScales kXScales = XScales::kToken;
  static constexpr bool kMinimums = false, kHalves = false;
  static constexpr uint32_t kOnes = 0x01010101u;
  __device__ static void activations(const uint32_t (&eight)[2], uint32_t (&b)[2]) {
    b[0] = eight[0], b[1] = eight[1];
  }
  __device__ static void multiply(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                  uint32_t b1) {
    mma_i8(d, a, b0, b1);
  }
};

// Traits of an operand: kCodeBits is the size of a code. kGroups: sums are scaled group by group.
// kScaled: there are scales. kZeros: there may be zero points. kMinimums: groups have minimums,
// into which zero points are folded. kHalves: groups are an odd number of half k-blocks. kOnes: a
// register of ones as the first operand. `zero` holds the zero points of the lane's two rows as the
// operand expects them: both(kZeroBase + zero point). `codes` is the lane's share of a k-block.

struct Bf16Operand : Bf16Products {
  static constexpr int kCodeBits = 16;
  static constexpr bool kGroups = false, kScaled = false, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[8], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[0][i / 4][i % 4] = codes[i];
  }
};

struct F16Operand : Bf16Products {
  static constexpr int kCodeBits = 16, kTerms = 2;
  static constexpr bool kGroups = false, kScaled = false, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[8], const uint32_t (&)[2],
                                 uint32_t (&a)[2][2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) split_f16(codes[i], a[0][i / 4][i % 4], a[1][i / 4][i % 4]);
  }
};

/// Unpacks eight columns of each of two rows. `each` turns four codes into two pairs.
template <class Each>
__device__ inline void weights_of_bytes(const uint32_t (&codes)[4], uint32_t (&a)[1][2][4],
                                        Each each) {
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t pairs[2];
      each(codes[2 * s + h], h, pairs);
      a[0][s][h] = pairs[0], a[0][s][2 + h] = pairs[1];
    }
  }
}
/// Unpacks nibbles in the same way. `each` turns eight codes into four pairs.
template <class Each>
__device__ inline void weights_of_nibbles(const uint32_t (&codes)[2], uint32_t (&a)[1][2][4],
                                          Each each) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t pairs[4];
    each(codes[h], h, pairs);
    a[0][0][h] = pairs[0], a[0][0][2 + h] = pairs[1];
    a[0][1][h] = pairs[2], a[0][1][2 + h] = pairs[3];
  }
}

template <bool kInGroups>
struct Int8Operand : Bf16Products {
  static constexpr int kCodeBits = 8, kZeroBase = 0;
  static constexpr bool kGroups = kInGroups, kScaled = true, kZeros = kInGroups;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&zero)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_bytes(codes, a, [&](uint32_t four, int h, uint32_t(&pairs)[2]) {
      unpack_i8(four, pairs);
      if constexpr (kZeros) subtract(zero[h], pairs);
    });
  }
};

struct Int4Operand : Bf16Products {
  static constexpr int kCodeBits = 4, kZeroBase = 136;
  static constexpr bool kGroups = true, kScaled = true, kZeros = true;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&zero)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a, [&](uint32_t eight, int h, uint32_t(&pairs)[4]) {
      unpack_i4(eight, zero[h], pairs);
    });
  }
};

template <bool kInGroups>
struct Fp8Operand : Bf16Products {
  static constexpr int kCodeBits = 8;
  static constexpr bool kGroups = kInGroups, kScaled = true, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_bytes(
        codes, a, [](uint32_t four, int, uint32_t(&pairs)[2]) { unpack_e4m3_bf16(four, pairs); });
  }
};

struct Fp4Operand : Bf16Products {
  static constexpr int kCodeBits = 4;
  static constexpr bool kGroups = true, kScaled = true, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a,
                       [](uint32_t eight, int, uint32_t(&pairs)[4]) { unpack_e2m1(eight, pairs); });
  }
};

template <bool kInGroups>
struct Fp8Fp8Operand : Fp8Products<kInGroups ? XScales::kGroup : XScales::kToken> {
  static constexpr int kCodeBits = 8;
  static constexpr bool kGroups = kInGroups, kScaled = true, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_bytes(codes, a,
                     [](uint32_t four, int, uint32_t(&pairs)[2]) { unpack_e4m3(four, pairs); });
  }
};

struct Int4Fp8Operand : Fp8Products<XScales::kToken> {
  static constexpr int kCodeBits = 4, kZeroBase = 1032;
  static constexpr bool kGroups = true, kScaled = true, kZeros = true;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&zero)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(codes, a, [&](uint32_t eight, int h, uint32_t(&pairs)[4]) {
      unpack_i4_f16(eight, zero[h], pairs);
    });
  }
};

struct Fp4Fp8Operand : Fp8Products<XScales::kToken> {
  static constexpr int kCodeBits = 4;
  static constexpr bool kGroups = true, kScaled = true, kZeros = false;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&)[2],
                                 uint32_t (&a)[1][2][4]) {
    weights_of_nibbles(
        codes, a, [](uint32_t eight, int, uint32_t(&pairs)[4]) { unpack_e2m1_f16(eight, pairs); });
  }
};

template <bool kInGroups>
struct Int8Int8Operand : IntegerProducts {
  static constexpr int kCodeBits = 8;
  static constexpr bool kGroups = kInGroups, kScaled = true, kZeros = kInGroups;
  static constexpr float kUnit = 1;
  static constexpr int kZeroBase = 0, kOne = 1;  ///< factor that stands for a code of 1
  __device__ static void weights(const uint32_t (&codes)[4], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][0][i] = codes[i];
  }
};

/// `spread` turns eight nibbles into two times four columns.
template <class Spread>
__device__ inline void integers_of_nibbles(const uint32_t (&codes)[2], uint32_t (&a)[1][1][4],
                                           Spread spread) {
  uint32_t first[2], second[2];
  spread(codes[0], first);
  spread(codes[1], second);
  a[0][0][0] = first[0], a[0][0][1] = second[0], a[0][0][2] = first[1], a[0][0][3] = second[1];
}

struct Int4Int8Operand : IntegerProducts {
  static constexpr int kCodeBits = 4;
  static constexpr bool kGroups = true, kScaled = true, kZeros = true;
  static constexpr float kUnit = 1.0f / 16;
  static constexpr int kZeroBase = 0, kOne = 16;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
    integers_of_nibbles(codes, a,
                        [](uint32_t eight, uint32_t(&fours)[2]) { spread_i4(eight, fours); });
  }
};

/// Integer weights in groups with minimums, into which zero points are folded.
template <class Operand>
struct WithMinimums : Operand {
  static constexpr bool kGroups = true, kZeros = false, kMinimums = true;
};

/// Groups that are an odd number of half k-blocks. A lane has four columns of each half
/// (read_half_codes), so that an instruction multiplies one half.
template <class Operand>
struct InHalves : Operand {
  static constexpr bool kGroups = true, kHalves = true;
  /// Adds the products of half `s`.
  __device__ static void multiply_half(typename Operand::Sum (&d)[4],
                                       const uint32_t (&w)[Operand::kTerms][Operand::kSteps][4],
                                       const uint32_t (&x)[2 * Operand::kSteps], int s) {
    if constexpr (Operand::kSteps == 1) {
      mma_i8_half(d, w[0][0][2 * s], w[0][0][2 * s + 1], x[s]);
    } else {
#pragma unroll
      for (int term = 0; term < Operand::kTerms; ++term)
        Operand::multiply(d, w[term][s], x[2 * s], x[2 * s + 1]);
    }
  }
  /// Adds the sums of x in half `s`.
  __device__ static void sum_half(typename Operand::Sum (&d)[4],
                                  const uint32_t (&x)[2 * Operand::kSteps], int s) {
    constexpr uint32_t kOnes[4] = {Operand::kOnes, Operand::kOnes, Operand::kOnes, Operand::kOnes};
    if constexpr (Operand::kSteps == 1)
      mma_i8_half(d, Operand::kOnes, Operand::kOnes, x[s]);
    else
      Operand::multiply(d, kOnes, x[2 * s], x[2 * s + 1]);
  }
};

/// Groups of 16 columns whose scales are e4m3 numbers.
template <class Operand>
struct WithRowFactors : InHalves<Operand> {
  static constexpr bool kRowFactors = true;
};

struct Fp4Int8Operand : IntegerProducts {
  static constexpr int kCodeBits = 4;
  static constexpr bool kGroups = true, kScaled = true, kZeros = false;
  static constexpr float kUnit = 0.5f;
  __device__ static void weights(const uint32_t (&codes)[2], const uint32_t (&)[2],
                                 uint32_t (&a)[1][1][4]) {
    integers_of_nibbles(codes, a,
                        [](uint32_t eight, uint32_t(&fours)[2]) { spread_e2m1(eight, fours); });
  }
};

}  // namespace moracle::cuda
