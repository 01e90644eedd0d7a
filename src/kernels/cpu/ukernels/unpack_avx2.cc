// Unpacks codes to row blocks of int8, bf16 and f32 for AVX2, half a row block at a time. Results
// are those of unpack_avx512_vnni.cc. No AVX2 kernel multiplies bf16; it is an intermediate
// step to f32.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_avx2.h"
#include "kernels/cpu/ukernels/float_limbs.h"
#include "kernels/cpu/ukernels/unpack_groups.h"

namespace moracle::cpu {
namespace {

MORACLE_UKERNEL_INLINE void store_half(std::byte* to, int64_t row_block, int half, __m256i value) {
  _mm256_store_si256(
      reinterpret_cast<__m256i*>(to + row_block * kRowBlockBytes + half * kHalfBytes), value);
}
MORACLE_UKERNEL_INLINE __m256i table(const int8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
MORACLE_UKERNEL_INLINE __m256i select(__m256i where, __m256i a, __m256i b) {
  return _mm256_blendv_epi8(b, a, where);
}

/// Calls body for each half row block with its index, its codes and the destination.
template <class Body>
MORACLE_UKERNEL_INLINE void each_half(const UnpackBlocksArgs& c, const Body& body) {
  const std::byte* const from = c.codes;
  std::byte* const to = c.to;
  for (int64_t i = 0, row_blocks = c.blocks; i < row_blocks; ++i) {
    const __m256i first = load_half(from + i * kRowBlockBytes),
                  second = load_half(from + i * kRowBlockBytes + kHalfBytes);
    body(i, 0, first, to);
    body(i, 1, second, to);
  }
}

// ---- powers of two ----

/// e - 127 in both words of a row's dword, for each half of the rows.
struct Exponents {
  __m256i half[2];
};
MORACLE_UKERNEL_INLINE Exponents exponents(const UnpackBlocksArgs& c) {
  Exponents all;
  for (int half = 0; half < 2; ++half) {
    const __m256i e = c.exponent_lanes == 1
                          ? _mm256_set1_epi32(c.exponent[0])
                          : _mm256_cvtepu8_epi32(_mm_loadl_epi64(
                                reinterpret_cast<const __m128i*>(c.exponent + half * kHalfRows)));
    const __m256i d = _mm256_sub_epi32(e, _mm256_set1_epi32(127));
    all.half[half] = _mm256_blend_epi16(d, _mm256_slli_epi32(d, 16), 0xaa);
  }
  return all;
}

/// bf16 times 2^e. Zeros and NaN stay; results below the normal numbers become 0.
MORACLE_UKERNEL_INLINE __m256i times_power(__m256i bf16, __m256i e) {
  const __m256i before = _mm256_and_si256(_mm256_srli_epi16(bf16, 7), _mm256_set1_epi16(255));
  const __m256i nan = _mm256_cmpeq_epi16(before, _mm256_set1_epi16(255));
  const __m256i size = _mm256_and_si256(bf16, _mm256_set1_epi16(0x7fff));
  const __m256i zero = _mm256_cmpeq_epi16(size, _mm256_setzero_si256());
  const __m256i stays = _mm256_andnot_si256(
      zero, _mm256_cmpgt_epi16(_mm256_add_epi16(before, e), _mm256_setzero_si256()));
  const __m256i moved = _mm256_and_si256(stays, _mm256_add_epi16(bf16, _mm256_slli_epi16(e, 7)));
  return select(nan, bf16, moved);
}
/// times_power for finite values whose results are normal numbers or 0.
MORACLE_UKERNEL_INLINE __m256i times_small_power(__m256i bf16, __m256i shifted_e) {
  const __m256i size = _mm256_and_si256(bf16, _mm256_set1_epi16(0x7fff));
  const __m256i zero = _mm256_cmpeq_epi16(size, _mm256_setzero_si256());
  return _mm256_add_epi16(bf16, _mm256_andnot_si256(zero, shifted_e));
}

// ---- 4 bits ----

alignas(16) constexpr int8_t kI4Bytes[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                             -8, -7, -6, -5, -4, -3, -2, -1};
alignas(16) constexpr int8_t kE2M1Bytes[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
// The upper and the lower bytes of bf16 values.
alignas(16) constexpr int8_t kI4Upper[16] = {0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
                                             -63,  -64,  -64,  -64,  -64,  -64,  -64,  -65};
alignas(16) constexpr int8_t kI4Lower[16] = {0x00, -128, 0x00, 0x40, -128, -96,  -64,  -32,
                                             0x00, -32,  -64,  -96,  -128, 0x40, 0x00, -128};
alignas(16) constexpr int8_t kE2M1Upper[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                               -128, -65,  -65,  -65,  -64,  -64,  -64,  -64};
alignas(16) constexpr int8_t kE2M1Lower[16] = {0x00, 0x00, -128, -64, 0x00, 0x40, -128, -64,
                                               0x00, 0x00, -128, -64, 0x00, 0x40, -128, -64};

/// Byte pairs form bf16 of four columns of eight rows: halves of two row blocks, with two columns
/// each.
struct Pairs {
  __m256i first, second;
};
MORACLE_UKERNEL_INLINE Pairs pairs_of(__m256i lower, __m256i upper) {
  const __m256 rows01 = _mm256_castsi256_ps(_mm256_unpacklo_epi8(lower, upper)),
               rows23 = _mm256_castsi256_ps(_mm256_unpackhi_epi8(lower, upper));
  return {_mm256_castps_si256(_mm256_shuffle_ps(rows01, rows23, 0x88)),
          _mm256_castps_si256(_mm256_shuffle_ps(rows01, rows23, 0xdd))};
}

enum class Power : uint8_t { kNone, kSmall, kAny };

template <Power kPower>
MORACLE_UKERNEL_INLINE void nibbles_to_bf16(const UnpackBlocksArgs& c, const int8_t* upper_bytes,
                                            const int8_t* lower_bytes, Exponents e = {}) {
  const __m256i upper = table(upper_bytes), lower = table(lower_bytes);
  const __m256i nibble = _mm256_set1_epi8(15);
  if constexpr (kPower == Power::kSmall) {
    for (__m256i& half : e.half) half = _mm256_slli_epi16(half, 7);
  }
  each_half(c, [&](int64_t i, int half, __m256i codes, std::byte* to) {
    for (int four = 0; four < 2; ++four) {  // columns 0 to 3 in the low nibbles, 4 to 7 in the high
      const __m256i index =
          _mm256_and_si256(four == 0 ? codes : _mm256_srli_epi16(codes, 4), nibble);
      Pairs pairs = pairs_of(_mm256_shuffle_epi8(lower, index), _mm256_shuffle_epi8(upper, index));
      if constexpr (kPower == Power::kSmall) {
        pairs.first = times_small_power(pairs.first, e.half[half]);
        pairs.second = times_small_power(pairs.second, e.half[half]);
      }
      if constexpr (kPower == Power::kAny) {
        pairs.first = times_power(pairs.first, e.half[half]);
        pairs.second = times_power(pairs.second, e.half[half]);
      }
      store_half(to, 4 * i + 2 * four, half, pairs.first);
      store_half(to, 4 * i + 2 * four + 1, half, pairs.second);
    }
  });
}

/// bf16 of two columns of integers with up to 8 bits.
MORACLE_UKERNEL_INLINE __m256i two_integers(__m256i even, __m256i odd) {
  const __m256i low = _mm256_castps_si256(_mm256_cvtepi32_ps(even)),
                high = _mm256_castps_si256(_mm256_cvtepi32_ps(odd));
  return _mm256_blend_epi16(high, _mm256_srli_epi32(low, 16), 0x55);
}

// With zero points, values are integers of up to 5 bits.
MORACLE_UKERNEL_INLINE void integers_to_bf16(const UnpackBlocksArgs& c) {
  const __m256i zero[] = {widen_bytes(c.zero), widen_bytes(c.zero + kHalfRows)};
  each_half(c, [&](int64_t i, int half, __m256i codes, std::byte* to) {
    for (int four = 0; four < 2; ++four) {
      for (int pair = 0; pair < 2; ++pair) {
        auto value = [&](int column) {
          const __m256i top = _mm256_slli_epi32(codes, 28 - 8 * column - 4 * four);
          return _mm256_sub_epi32(_mm256_srai_epi32(top, 28), zero[half]);
        };
        store_half(to, 4 * i + 2 * four + pair, half,
                   two_integers(value(2 * pair), value(2 * pair + 1)));
      }
    }
  });
}

void i4_to_bf16(const UnpackBlocksArgs& c) {
  if (c.zero == nullptr) return nibbles_to_bf16<Power::kNone>(c, kI4Upper, kI4Lower);
  each_group<4>(c, [](const UnpackBlocksArgs& group) { integers_to_bf16(group); });
}

void e2m1_to_bf16(const UnpackBlocksArgs& c) {
  if (c.exponent == nullptr) return nibbles_to_bf16<Power::kNone>(c, kE2M1Upper, kE2M1Lower);
  each_group<4>(c, [&](const UnpackBlocksArgs& group) {
    const Exponents e = exponents(group);
    // 0.5 to 6 times 2^-125 to 2^125.
    const __m256i most = _mm256_max_epi16(_mm256_abs_epi16(e.half[0]), _mm256_abs_epi16(e.half[1]));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi16(most, _mm256_set1_epi16(125))) == 0)
      nibbles_to_bf16<Power::kSmall>(group, kE2M1Upper, kE2M1Lower, e);
    else
      nibbles_to_bf16<Power::kAny>(group, kE2M1Upper, kE2M1Lower, e);
  });
}

MORACLE_UKERNEL_INLINE void nibbles_to_int8(const UnpackBlocksArgs& c, const int8_t* bytes) {
  const __m256i values = table(bytes), nibble = _mm256_set1_epi8(15);
  each_half(c, [&](int64_t i, int half, __m256i codes, std::byte* to) {
    const __m256i high = _mm256_srli_epi16(codes, 4);
    store_half(to, 2 * i, half, _mm256_shuffle_epi8(values, _mm256_and_si256(codes, nibble)));
    store_half(to, 2 * i + 1, half, _mm256_shuffle_epi8(values, _mm256_and_si256(high, nibble)));
  });
}

// ---- 8 bits ----

MORACLE_UKERNEL_INLINE void bytes_to_bf16(const UnpackBlocksArgs& c) {
  __m256i zero[] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  if (c.zero != nullptr) {
    zero[0] = widen_bytes(c.zero);
    zero[1] = widen_bytes(c.zero + kHalfRows);
  }
  each_half(c, [&](int64_t i, int half, __m256i codes, std::byte* to) {
    for (int pair = 0; pair < 2; ++pair) {
      auto value = [&](int column) {
        const __m256i top = _mm256_slli_epi32(codes, 24 - 8 * column);
        return _mm256_sub_epi32(_mm256_srai_epi32(top, 24), zero[half]);
      };
      store_half(to, 2 * i + pair, half, two_integers(value(2 * pair), value(2 * pair + 1)));
    }
  });
}
void i8_to_bf16(const UnpackBlocksArgs& c) {
  each_group<2>(c, [](const UnpackBlocksArgs& group) { bytes_to_bf16(group); });
}

/// Codes in the low bytes of words. The exponent's bias differs by 120, and 2^-9 is the step below
/// 2^-6. NaN stays NaN.
MORACLE_UKERNEL_INLINE __m256i e4m3_as_bf16(__m256i code) {
  // The upper bytes of 0 to 7 times 2^-9, and the lower bytes.
  const __m256i upper = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i lower = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0, -128, -64, 0, 0x20, 0x40, 0x60, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i size = _mm256_and_si256(code, _mm256_set1_epi16(0x7f));
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(size, 4), _mm256_set1_epi16(0x3c00));
  const __m256i small =
      _mm256_or_si256(_mm256_slli_epi16(_mm256_shuffle_epi8(upper, size), 8),
                      _mm256_and_si256(_mm256_shuffle_epi8(lower, size), _mm256_set1_epi16(255)));
  const __m256i nan = _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x7f));
  __m256i value = select(_mm256_cmpgt_epi16(_mm256_set1_epi16(8), size), small, normal);
  value = select(nan, _mm256_set1_epi16(0x7fc0), value);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16(-0x8000));
  return _mm256_or_si256(value, sign);
}

/// e4m3_as_bf16 for normal numbers: the upper byte follows from the code's upper half.
MORACLE_UKERNEL_INLINE Pairs normal_e4m3(__m256i codes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i upper = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61));
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
  return pairs_of(_mm256_andnot_si256(nibble, _mm256_slli_epi16(codes, 4)),
                  _mm256_shuffle_epi8(upper, high));
}
MORACLE_UKERNEL_INLINE bool all_normal(__m256i codes) {
  // 8 to 126 without the sign: neither size - 8 nor size + 1 has the highest bit.
  const __m256i size = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
  const __m256i outside = _mm256_or_si256(_mm256_sub_epi8(size, _mm256_set1_epi8(8)),
                                          _mm256_add_epi8(size, _mm256_set1_epi8(1)));
  return _mm256_movemask_epi8(outside) == 0;
}

template <bool kScaled>
MORACLE_UKERNEL_INLINE void e4m3_row_blocks(const UnpackBlocksArgs& c) {
  const Exponents e = kScaled ? exponents(c) : Exponents{};
  each_half(c, [&](int64_t i, int half, __m256i codes, std::byte* to) {
    Pairs pairs = normal_e4m3(codes);
    if (!all_normal(codes)) [[unlikely]] {
      pairs = pairs_of(codes, _mm256_setzero_si256());
      pairs = {e4m3_as_bf16(pairs.first), e4m3_as_bf16(pairs.second)};
    }
    __m256i first = pairs.first, second = pairs.second;
    if constexpr (kScaled) {
      first = times_power(first, e.half[half]);
      second = times_power(second, e.half[half]);
    }
    store_half(to, 2 * i, half, first);
    store_half(to, 2 * i + 1, half, second);
  });
}
void e4m3_to_bf16(const UnpackBlocksArgs& c) {
  if (c.exponent == nullptr) return e4m3_row_blocks<false>(c);
  each_group<2>(c, [](const UnpackBlocksArgs& group) { e4m3_row_blocks<true>(group); });
}

// ---- to f32 ----

// Without scales nothing is multiplied, not even by 1, which would change the bits of signaling
// NaNs.
template <bool kScaled>
void bf16_row_blocks(const UnpackBlocksArgs& c) {
  __m256 scale[2] = {};
  if (kScaled) {
    scale[0] = _mm256_loadu_ps(c.scale);
    scale[1] = _mm256_loadu_ps(c.scale + kHalfRows);
  }
  each_half(c, [&](int64_t i, int half, __m256i pair, std::byte* to) {
    __m256i even = _mm256_slli_epi32(pair, 16);
    __m256i odd = _mm256_and_si256(pair, _mm256_set1_epi32(-65536));
    if constexpr (kScaled) {
      even = _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(even), scale[half]));
      odd = _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(odd), scale[half]));
    }
    store_half(to, 2 * i, half, even);
    store_half(to, 2 * i + 1, half, odd);
  });
}

void bf16_to_f32(const UnpackBlocksArgs& c) {
  c.scale != nullptr ? bf16_row_blocks<true>(c) : bf16_row_blocks<false>(c);
}

// ---- rows ----

/// Calls body(from, to) on kCount elements at a time. A shorter rest goes through padded copies.
template <int kCount, class From, class Body>
MORACLE_UKERNEL_INLINE void each_some(const From* from, int64_t count, std::byte* to,
                                      int64_t to_bytes, const Body& body) {
  int64_t i = 0;
  for (; i + kCount <= count; i += kCount) body(from + i, to + i * to_bytes);
  if (i == count) return;
  From last[kCount] = {};
  std::byte made[kCount * 4];
  __builtin_memcpy(last, from + i, static_cast<size_t>(count - i) * sizeof(From));
  body(last, made);
  __builtin_memcpy(to + i * to_bytes, made, static_cast<size_t>((count - i) * to_bytes));
}

}  // namespace

void powers_of_two_avx2(const uint8_t* exponents, int64_t count, bool half, float* to) {
  const __m256i less = _mm256_set1_epi32(half ? 1 : 0);
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i e =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(exponents + i)));
    const __m256i power =
        _mm256_slli_epi32(_mm256_max_epi32(_mm256_sub_epi32(e, less), _mm256_setzero_si256()), 23);
    const __m256i nan = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        select(nan, _mm256_set1_epi32(0x7fc00000), power));
  }
}

void pack_e4m3_to_f32_avx2(const PackArgs& a) {
  each_some<8>(static_cast<const uint8_t*>(a.from), a.count, a.to, 4,
               [](const uint8_t* x, std::byte* y) {
                 const __m256i codes =
                     _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(x)));
                 _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                                     _mm256_slli_epi32(e4m3_as_bf16(codes), 16));
               });
}

void pack_i8_to_f32_avx2(const PackArgs& a) {
  each_some<8>(static_cast<const int8_t*>(a.from), a.count, a.to, 4,
               [](const int8_t* x, std::byte* y) {
                 _mm256_storeu_ps(reinterpret_cast<float*>(y), _mm256_cvtepi32_ps(widen_bytes(x)));
               });
}

void pack_i8_to_i8_avx2(const PackArgs& a) {
  const auto* const from = static_cast<const int8_t*>(a.from);
  int32_t* sums = a.sums;
  for (int64_t begin = 0; begin < a.count; begin += a.segment) {
    const int64_t end = begin + a.segment < a.count ? begin + a.segment : a.count;
    __m256i sum = _mm256_setzero_si256();
    each_some<32>(from + begin, end - begin, a.to + begin, 1, [&](const int8_t* x, std::byte* y) {
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), codes);
      sum = add_products(sum, _mm256_set1_epi8(1), codes);
    });
    const __m128i four =
        _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    *sums++ = _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
}

void pack_f32_to_i8_avx2(const PackArgs& a) {
  f32_to_limbs(a);
}

void unpack_i4_to_i8_avx2(const UnpackBlocksArgs& c) {
  nibbles_to_int8(c, kI4Bytes);
}
void unpack_e2m1_to_i8_avx2(const UnpackBlocksArgs& c) {
  nibbles_to_int8(c, kE2M1Bytes);
}
void unpack_i4_to_f32_avx2(const UnpackBlocksArgs& c) {
  to_f32<4, i4_to_bf16, bf16_to_f32>(c);
}
void unpack_i8_to_f32_avx2(const UnpackBlocksArgs& c) {
  to_f32<2, i8_to_bf16, bf16_to_f32>(c);
}
void unpack_e4m3_to_f32_avx2(const UnpackBlocksArgs& c) {
  to_f32<2, e4m3_to_bf16, bf16_to_f32>(c);
}
void unpack_e2m1_to_f32_avx2(const UnpackBlocksArgs& c) {
  to_f32<4, e2m1_to_bf16, bf16_to_f32>(c);
}

}  // namespace moracle::cpu

#endif
