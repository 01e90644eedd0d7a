// Codes of row blocks as numbers, in the vectors of simd/vector.h. A dword of a row block holds the
// columns of one weight row, so shifts bring each column to its place in a register and no code
// moves between lanes.
//
// A code type has:
//   kColumns   columns in a dword
//   kScale     factor of all values, applied to sums or scales
//   value      column c of each row, less the zero points of the rows
//   kHasRare   normal_value suffices unless is_rare(rarity(codes)); rarer(): of either codes
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/ukernels/args.h"

namespace moracle::cpu {
namespace {

constexpr int kVectors = kPanelRows / kLanes;  // of f32 sums in a panel

struct F32Code {
  static constexpr int kColumns = 1;
  static constexpr float kScale = 1;
  static constexpr bool kHasRare = false;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int, Vec) { return as<Vec>(codes); }
};

/// Bits to shift column c to the top. 4-bit columns 4 to 7 lie in the high halves of the bytes.
template <int kBits>
constexpr int column_shift(int c) {
  return kBits == 8 ? 24 - 8 * c : c < 4 ? 28 - 8 * c : 24 - 8 * (c - 4);
}

#if defined(MORACLE_VECTOR_AVX512)
/// The value of column c in a table of 4-bit codes. The permutation ignores an index's upper bits.
MORACLE_VECTOR_INLINE Vec nibble_value(const float* values, Bits codes, int c) {
  const __m512i index = as<__m512i>(codes >> (28 - column_shift<4>(c)));
  return _mm512_permutexvar_ps(index, _mm512_load_ps(values));
}
alignas(64) constexpr float kI4Values[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                             -8, -7, -6, -5, -4, -3, -2, -1};
alignas(64) constexpr float kE2M1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                               4.0f,  6.0f,  0.0f,  -0.5f, -1.0f, -1.5f,
                                               -2.0f, -3.0f, -4.0f, -6.0f};
/// 4-bit code values as bf16, stored twice: bit 4 of an index may be the neighbour's lowest bit.
alignas(64) constexpr uint16_t kI4AsBf16[32] = {
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0,
    0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0,
    0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};
alignas(64) constexpr uint16_t kE2M1AsBf16[32] = {
    0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80,
    0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0, 0x0000, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040,
    0x4080, 0x40c0, 0x8000, 0xbf00, 0xbf80, 0xbfc0, 0xc000, 0xc040, 0xc080, 0xc0c0};
#endif

/// Byte c of each dword, with its sign.
MORACLE_VECTOR_INLINE Ints signed_byte(Bits bytes, int c) {
#if defined(MORACLE_VECTOR_AVX2)
  // Shift up with a shuffle: vpslld would share the ports of all other steps.
  alignas(16) static constexpr int8_t kUp[4][16] = {
      {-1, -1, -1, 0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12},
      {-1, -1, -1, 1, -1, -1, -1, 5, -1, -1, -1, 9, -1, -1, -1, 13},
      {-1, -1, -1, 2, -1, -1, -1, 6, -1, -1, -1, 10, -1, -1, -1, 14},
      {-1, -1, -1, 3, -1, -1, -1, 7, -1, -1, -1, 11, -1, -1, -1, 15}};
  const __m256i up = _mm256_broadcastsi128_si256(load_as<__m128i>(kUp[c]));
  return as<Ints>(_mm256_shuffle_epi8(as<__m256i>(bytes), up)) >> 24;
#else
  return as<Ints>(bytes << column_shift<8>(c)) >> 24;
#endif
}

template <int kBits>
struct IntCode {
  static constexpr int kColumns = 32 / kBits;
  static constexpr float kScale = 1;
  static constexpr bool kHasRare = false;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec zero) {
    if constexpr (kBits == 8) return to_float(signed_byte(codes, c)) - zero;
#if defined(MORACLE_VECTOR_AVX512)
    return nibble_value(kI4Values, codes, c) - zero;
#elif defined(MORACLE_VECTOR_AVX2)
    const Bits upper = (c < 4 ? codes << 4 : codes) & 0xf0f0f0f0u;
    return to_float(signed_byte(upper, c % 4) >> 4) - zero;
#else
    return to_float(as<Ints>(codes << column_shift<4>(c)) >> 28) - zero;
#endif
  }
};

/// Twice the value of e2m1 codes in the low three bits: 0, 1, 2, 3, 4, 6, 8, 12.
template <class Lanes>
MORACLE_VECTOR_INLINE Lanes twice_e2m1(Lanes size) {
  const Lanes more = (size - 6) & (size > 6);
  return size + ((size - 4) & (size > 4)) + more + more;
}

/// 4-bit numbers, four in a lane, as int8 codes: integers, and twice the values of e2m1.
MORACLE_VECTOR_INLINE Bits i4_bytes(Bits numbers) {
  alignas(16) static constexpr int8_t kBytes[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                                    -8, -7, -6, -5, -4, -3, -2, -1};
  return lookup_bytes(kBytes, numbers);
}
MORACLE_VECTOR_INLINE Bits e2m1_bytes(Bits numbers) {
#if defined(MORACLE_VECTOR_AVX512) || defined(MORACLE_VECTOR_AVX2)
  alignas(16) static constexpr int8_t kBytes[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                    0, -1, -2, -3, -4, -6, -8, -12};
  return lookup_bytes(kBytes, numbers);
#else
  using Chars = int8_t __attribute__((vector_size(4 * kLanes)));
  const Chars sign = as<Chars>(numbers & 0x08080808u) > 0;
  return as<Bits>((twice_e2m1(as<Chars>(numbers & 0x07070707u)) ^ sign) - sign);
#endif
}

struct E2M1Code {
  static constexpr int kColumns = 8;
  static constexpr bool kHasRare = false;
#if defined(MORACLE_VECTOR_AVX512)
  static constexpr float kScale = 1;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec) {
    return nibble_value(kE2M1Values, codes, c);
  }
#else
  static constexpr float kScale = 0.5f;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec) {
#if defined(MORACLE_VECTOR_AVX2)
    return to_float(signed_byte(e2m1_bytes((c < 4 ? codes : codes >> 4) & 0x0f0f0f0fu), c % 4));
#else
    const Ints top = as<Ints>(codes << column_shift<4>(c)), sign = top >> 31;
    const Ints size = as<Ints>(as<Bits>(top) << 1 >> 29);
    return to_float((twice_e2m1(size) ^ sign) - sign);
#endif
  }
#endif
};

/// The exponent's bias differs by 120. Zeros, subnormals and NaN are rare.
struct E4M3Code {
  static constexpr int kColumns = 4;
  static constexpr float kScale = 1;
  static constexpr bool kHasRare = true;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec) {
    const Bits top = codes << column_shift<8>(c);
    const Ints size = as<Ints>(top << 1 >> 25);
    const Ints normal = (size << 20) + (120 << 23);
    const Ints small = as<Ints>(to_float(size) * 0x1p-9f);
    const Ints nan = size > 126;  // all bits
    return as<Vec>(as<Bits>(size < 8 ? small : normal) | as<Bits>(nan) | (top & 0x80000000u));
  }
  /// Without the sign, 8 to 126 are normal numbers; plus 0x78, these are the bytes below kRarest.
  using Chars = int8_t __attribute__((vector_size(4 * kLanes)));
  static constexpr int8_t kRarest = -9;
  MORACLE_VECTOR_INLINE static Chars rarity(Bits codes) {
    return as<Chars>(codes & 0x7f7f7f7fu) + 0x78;
  }
  MORACLE_VECTOR_INLINE static Chars rarer(Chars a, Chars b) { return a > b ? a : b; }
  MORACLE_VECTOR_INLINE static bool is_rare(Chars rarity) {
#if defined(MORACLE_VECTOR_AVX512)
    return _mm512_cmpge_epi8_mask(as<__m512i>(rarity), _mm512_set1_epi8(kRarest)) != 0;
#else
    return any_high_bit(as<Bits>(rarity >= kRarest));
#endif
  }
  MORACLE_VECTOR_INLINE static Vec normal_value(Bits codes, int c, Vec) {
    const Ints top = as<Ints>(codes << column_shift<8>(c));
    return as<Vec>((as<Bits>(top >> 4) & 0x87f00000u) + (120u << 23));
  }
};

struct Bf16Code {
  static constexpr int kColumns = 2;
  static constexpr float kScale = 1;
  static constexpr bool kHasRare = false;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec) {
    return as<Vec>(c == 0 ? codes << 16 : codes & 0xffff0000u);
  }
};

/// No operand is ever a subnormal f32, so a caller's denormals-are-zero mode changes nothing.
struct F16Code {
  static constexpr int kColumns = 2;
  static constexpr float kScale = 1;
  static constexpr bool kHasRare = false;
  MORACLE_VECTOR_INLINE static Vec value(Bits codes, int c, Vec) {
    const Bits code = c == 0 ? codes << 16 : codes;
    const Ints size = as<Ints>(code << 1 >> 17);
    const Ints small = as<Ints>(to_float(size) * 0x1p-24f);
    // The exponent's bias changes from 15 to 127; that of infinity and NaN becomes 255.
    const Ints special = (size > 0x7bff) & (112 << 23);
    const Ints normal = (size << 13) + (112 << 23) + special;
    return as<Vec>(as<Bits>(size < 0x400 ? small : normal) | (code & 0x80000000u));
  }
};

MORACLE_VECTOR_INLINE Bits load_codes(const std::byte* row_block, int vector) {
  return load_as<Bits>(row_block + vector * kLanes * 4);
}
/// Signed bytes, one in a lane.
MORACLE_VECTOR_INLINE Ints widen_bytes(const int8_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Ints>(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#elif defined(MORACLE_VECTOR_AVX2)
  return as<Ints>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  Ints wide{};
  for (int n = 0; n < kLanes; ++n) wide[n] = p[n];
  return wide;
#endif
}

}  // namespace
}  // namespace moracle::cpu
