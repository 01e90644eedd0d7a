// The operands of the loops in dot.h, for AVX2 and AVX-512. A row block is one vector, or two
// halves. A type `Dot` defines how 4 bytes of activations multiply a vector of a row block:
//
//   kCalls          products per row block, each with 4 bytes of activations
//   kMostRows       rows whose sums fit into the registers
//   begin           the sums of no products; for integers, minus the offset of unsigned operands
//   weights         operand number `call` of the vector at p
//   add             adds products to one of the sums of kRows rows
//   finish          the sums as floats
//   kShortSegments  segments have 16 or 32 columns
//   kZeros          zero points are subtracted from weights; integers subtract them from sums
//   kHasRare        weights() unpacks wrongly what E4M3Code::is_rare finds; rare_weights() does not
#pragma once

#include "kernels/cpu/ukernels/codes.h"

namespace moracle::cpu {
namespace {

constexpr int kVectorBytes = kRowBlockBytes / kVectors;
constexpr bool kFewRegisters = kLanes == 8;  // 16; AVX-512 has 32

MORACLE_VECTOR_INLINE Bits load_bits(const std::byte* p) {
  return load_as<Bits>(p);
}
MORACLE_VECTOR_INLINE Bits broadcast_bytes(const std::byte* p) {
  return splat_bits(load_as<uint32_t>(p));
}

// ---- int8 ----

struct IntegersDot {
  using Sum = Ints;
  static constexpr bool kIntegers = true;
  static constexpr int kCalls = 1;
  static constexpr bool kHasRare = false;
  static constexpr bool kShortSegments = false;
  static constexpr bool kZeros = false;
  MORACLE_VECTOR_INLINE static Vec finish(Sum sum) { return to_float(sum); }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// sum + four products of unsigned and signed bytes in each lane.
MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Bits bytes, Bits x) {
#if defined(__AVX512VNNI__)
  return as<Ints>(_mm512_dpbusd_epi32(as<__m512i>(sum), as<__m512i>(bytes), as<__m512i>(x)));
#else
  return as<Ints>(_mm256_dpbusd_avx_epi32(as<__m256i>(sum), as<__m256i>(bytes), as<__m256i>(x)));
#endif
}

/// The instruction takes unsigned bytes on one side. Weights enter as w + 128, and sums begin at
/// -128 Σ x.
struct Int8Dot : IntegersDot {
  using Weights = Bits;
  static constexpr int kMostRows = kFewRegisters ? 6 : 8;
  MORACLE_VECTOR_INLINE static Sum begin(const int32_t* x_sum) {
    return Ints{} - as<Ints>(splat_bits(static_cast<uint32_t>(*x_sum)) << 7);
  }
  MORACLE_VECTOR_INLINE static Weights weights(const std::byte* p, int) {
    return load_bits(p) ^ splat_bits(0x80808080u);
  }
  MORACLE_VECTOR_INLINE static Bits activations(const std::byte* p) { return broadcast_bytes(p); }
  template <int>
  MORACLE_VECTOR_INLINE static void add(Sum& sum, Bits x, Weights w) {
    sum = add_products(sum, w, x);
  }
};
#else
/// sum + four products of unsigned and signed bytes in each lane. The products of two neighbours
/// must together fit into 16 bits.
MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Bits bytes, Bits x) {
  const __m256i pairs = _mm256_maddubs_epi16(as<__m256i>(bytes), as<__m256i>(x));
  return sum + as<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/// The instruction multiplies unsigned bytes by signed ones and adds two such products into 16
/// bits. To fit, w · x is computed as |w| · (x with the sign of w). |w| is at most 128, which the
/// unsigned side holds. |x| is at most 127, since the scale of a row is its largest value / 127.
/// So x changes its sign within 8 bits, and 2 · 128 · 127 = 32,512 is below 32,768. Where w is 0,
/// x becomes 0. No code saturates.
struct Int8Dot : IntegersDot {
  struct Weights {
    __m256i value, size;
  };
  static constexpr int kMostRows = 4;  // 8 sums, two halves and their sizes, ones, two temporaries
  MORACLE_VECTOR_INLINE static Sum begin(const int32_t*) { return Sum{}; }
  MORACLE_VECTOR_INLINE static Weights weights(const std::byte* p, int) {
    const auto value = as<__m256i>(load_bits(p));
    return {value, _mm256_abs_epi8(value)};
  }
  MORACLE_VECTOR_INLINE static Bits activations(const std::byte* p) { return broadcast_bytes(p); }
  template <int>
  MORACLE_VECTOR_INLINE static void add(Sum& sum, Bits x, Weights w) {
    sum = add_products(sum, as<Bits>(w.size), as<Bits>(_mm256_sign_epi8(as<__m256i>(x), w.value)));
  }
};
#endif

// ---- int8 times 4 bits ----

/// The low or the high halves of bytes in their low bits; the upper bits are not cleared.
MORACLE_VECTOR_INLINE Bits half_bytes(Bits codes, int half) {
  using Words = uint16_t __attribute__((vector_size(4 * kLanes)));
  return half == 0 ? codes : as<Bits>(as<Words>(codes) >> 4);
}

/// 4-bit codes as unsigned operands, code + kOffset: the low or the high halves of bytes.
struct I4Bytes {
  static constexpr int kOffset = 8;
  static constexpr int kMost = 15;
  static constexpr bool kShortSegments = false;
  MORACLE_VECTOR_INLINE static Bits values(Bits codes, int half) {
#if defined(MORACLE_VECTOR_AVX512)
    // (codes ^ 8) & 15
    return as<Bits>(_mm512_ternarylogic_epi32(as<__m512i>(half_bytes(codes, half)),
                                              _mm512_set1_epi8(8), _mm512_set1_epi8(15), 0x28));
#else
    return half_bytes(codes ^ splat_bits(0x88888888u), half) & splat_bits(0x0f0f0f0fu);
#endif
  }
};
/// Twice the values.
struct E2M1Bytes {
  static constexpr int kOffset = 12;
  static constexpr int kMost = 24;
  static constexpr bool kShortSegments = true;
  MORACLE_VECTOR_INLINE static Bits values(Bits codes, int half) {
    alignas(16) static constexpr int8_t kBytes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                      12, 11, 10, 9,  8,  6,  4,  0};
    return lookup_bytes(kBytes, half_bytes(codes, half) & splat_bits(0x0f0f0f0fu));
  }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// A row block holds 8 columns of each row: columns 0 to 3 in the low halves of its bytes.
template <class Codes>
struct NibblesDot : Int8Dot {
  static constexpr int kCalls = 2;
  static constexpr int kMostRows = kFewRegisters ? 4 : 8;
  static constexpr bool kShortSegments = Codes::kShortSegments;
  MORACLE_VECTOR_INLINE static Ints begin(const int32_t* x_sum) {
    return as<Ints>(splat_bits(static_cast<uint32_t>(*x_sum))) * -Codes::kOffset;
  }
  MORACLE_VECTOR_INLINE static Bits weights(const std::byte* p, int half) {
    return Codes::values(load_bits(p), half);
  }
};
#endif

// ---- f32 ----

struct F32Dot {
  using Sum = Vec;
  using Weights = Vec;
  static constexpr bool kIntegers = false;
  static constexpr int kCalls = 1;
  static constexpr int kMostRows = kFewRegisters ? 6 : 8;
  static constexpr bool kHasRare = false;
  static constexpr bool kShortSegments = false;
  static constexpr bool kZeros = false;
  MORACLE_VECTOR_INLINE static Sum begin(const int32_t*) { return Sum{}; }
  MORACLE_VECTOR_INLINE static Weights weights(const std::byte* p, int) { return load_as<Vec>(p); }
  MORACLE_VECTOR_INLINE static Vec activations(const std::byte* p) {
    return splat(load_as<float>(p));
  }
  template <int>
  MORACLE_VECTOR_INLINE static void add(Sum& sum, Vec x, Weights w) {
    sum = multiply_add(x, w, sum);
  }
  MORACLE_VECTOR_INLINE static Vec finish(Sum sum) { return sum; }
};

/// Row blocks of bf16 times f32: two columns in a row block.
struct Bf16Codes : F32Dot {
  static constexpr int kCalls = 2;
  MORACLE_VECTOR_INLINE static Vec weights(const std::byte* p, int column) {
    const Bits pairs = load_bits(p);
#if defined(MORACLE_VECTOR_AVX2)
    // Shift with a shuffle: vpslld would share the ports of the multiply-adds.
    if (column == 0) {
      const __m256i up = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13));
      return as<Vec>(_mm256_shuffle_epi8(as<__m256i>(pairs), up));
    }
#endif
    return Bf16Code::value(pairs, column, Vec{});
  }
};

/// Row blocks of f16 times f32, likewise.
struct F16Codes : F32Dot {
  static constexpr int kCalls = 2;
  MORACLE_VECTOR_INLINE static Vec weights(const std::byte* p, int column) {
    const Bits pairs = load_bits(p);
#if defined(MORACLE_VECTOR_AVX512)
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(as<__m512i>(column == 0 ? pairs : pairs >> 16)));
#else
    // Within each lane, then in each half: four rows' first columns, then their second columns.
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i apart = _mm256_shuffle_epi8(as<__m256i>(pairs), order);
    const __m256i columns = _mm256_permute4x64_epi64(apart, 0xd8);
    return _mm256_cvtph_ps(column == 0 ? _mm256_castsi256_si128(columns)
                                       : _mm256_extracti128_si256(columns, 1));
#endif
  }
};

}  // namespace
}  // namespace moracle::cpu
