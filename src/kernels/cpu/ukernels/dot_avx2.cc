// Few rows times codes for AVX2. AVX-VNNI shares the f32 kernels of this file.
//
// The bytes of a column lie four apart, and no instruction converts them to f32. Codes become words
// first, two columns of a row in a dword. Then a word becomes the lower half of an f32 whose upper
// half is that of a large power of two. One exact subtraction leaves the code, without its zero
// point. e4m3 becomes bf16, which is the upper half of an f32. Either way a dword of a register
// belongs to one of two columns of a row. Their products are added at the end of a segment:
//
//   bytes of a dword     c0 c2 c1 c3                    after the columns are put in this order
//   words                c0 c1, then c2 c3
//   f32, first half      r0: c0, c1   r1: c0, c1   …    times x0 x1 x0 x1; second half: r2, r3

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_int16_avx2.h"
#include "kernels/cpu/ukernels/dot_maddubs_avx2.h"

namespace moracle::cpu {
namespace {

MORACLE_UKERNEL_INLINE __m256i columns_0213(__m256i codes) {
  return _mm256_shuffle_epi8(codes, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                        0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15)));
}

// ---- codes as floats ----
//
// kFours: columns in a row block, divided by four. kUpper: the upper half of a power of two. kBias:
// that power of two plus the code's offset. words: columns 4 · four + 2 · pair and the next one.

struct I4 {
  static constexpr int kFours = 2;
  static constexpr int16_t kUpper = 0x4b00;
  static constexpr float kBias = 0x1p23f + 8;
  MORACLE_UKERNEL_INLINE static __m256i prepared(__m256i codes) {
    return _mm256_xor_si256(codes, _mm256_set1_epi8(-120));  // 8 in both halves
  }
  MORACLE_UKERNEL_INLINE static __m256i words(__m256i codes, int four, int pair) {
    const __m256i low = _mm256_srli_epi16(codes, 8 * pair + 4 * four);
    return four == 1 && pair == 1 ? low : _mm256_and_si256(low, _mm256_set1_epi16(15));
  }
};

struct I8 {
  static constexpr int kFours = 1;
  static constexpr int16_t kUpper = 0x4b00;
  static constexpr float kBias = 0x1p23f + 128;
  MORACLE_UKERNEL_INLINE static __m256i prepared(__m256i codes) {
    return _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
  }
  MORACLE_UKERNEL_INLINE static __m256i words(__m256i codes, int, int pair) {
    return pair == 0 ? _mm256_and_si256(codes, _mm256_set1_epi16(255))
                     : _mm256_srli_epi16(codes, 8);
  }
};

// A table gives twice the value plus 12. From 2^22 on, the last bit of an f32 counts one half.
struct E2M1 {
  static constexpr int kFours = 2;
  static constexpr int16_t kUpper = 0x4a80;
  static constexpr float kBias = 0x1p22f + 6;
  MORACLE_UKERNEL_INLINE static __m256i prepared(__m256i codes) { return codes; }
  MORACLE_UKERNEL_INLINE static __m256i words(__m256i codes, int four, int pair) {
    return I8::words(E2M1Codes::values(codes, four), 0, pair);
  }
};

/// f32 of two columns: rows (0, 1, 4, 5), then (2, 3, 6, 7). `bias` is kBias plus zero points.
template <class Codes>
struct Integers {
  static constexpr int kFours = Codes::kFours;
  static constexpr float kBias = Codes::kBias;
  MORACLE_UKERNEL_INLINE static __m256i prepared(__m256i codes) { return Codes::prepared(codes); }
  MORACLE_UKERNEL_INLINE static bool all_normal(__m256i) { return true; }
  MORACLE_UKERNEL_INLINE static void floats(__m256i codes, bool, int four, int pair,
                                            const __m256 (&bias)[2], __m256 (&to)[2]) {
    const __m256i words = Codes::words(codes, four, pair);
    const __m256i upper = _mm256_set1_epi16(Codes::kUpper);
    to[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(words, upper)) - bias[0];
    to[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(words, upper)) - bias[1];
  }
};

/// Any e4m3 code, including subnormals and NaN, in the low bytes of dwords.
MORACLE_UKERNEL_INLINE __m256 any_e4m3(__m256i code) {
  const __m256i size = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256i sign = _mm256_slli_epi32(_mm256_xor_si256(size, code), 24);
  __m256 value = _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_slli_epi32(size, 20), _mm256_set1_epi32(120 << 23)));
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(size), _mm256_set1_ps(0x1p-9f));
  value = _mm256_blendv_ps(value, small,
                           _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(8), size)));
  value = _mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")),
                           _mm256_castsi256_ps(_mm256_cmpeq_epi32(size, _mm256_set1_epi32(0x7f))));
  return _mm256_or_ps(value, _mm256_castsi256_ps(sign));
}

// The code's exponent and mantissa as those of bf16, with 7 - 127 added to the exponent. The lower
// byte is the code's lower half; the upper byte follows from the code's upper half. Zeros,
// subnormals and NaN are rare and take another path.
struct E4M3 {
  static constexpr int kFours = 1;
  static constexpr float kBias = 0;
  MORACLE_UKERNEL_INLINE static __m256i prepared(__m256i codes) { return codes; }
  MORACLE_UKERNEL_INLINE static bool all_normal(__m256i codes) {
    // 8 to 126 without the sign: neither size - 8 nor size + 1 has the highest bit.
    const __m256i size = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
    const __m256i outside = _mm256_or_si256(_mm256_sub_epi8(size, _mm256_set1_epi8(8)),
                                            _mm256_add_epi8(size, _mm256_set1_epi8(1)));
    return _mm256_movemask_epi8(outside) == 0;
  }
  MORACLE_UKERNEL_INLINE static void floats(__m256i codes, bool normal, int, int pair,
                                            const __m256 (&)[2], __m256 (&to)[2]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(60, 61, 62, 63, 64, 65, 66, 67, -68, -67, -66, -65, -64, -63, -62, -61));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
    const __m256i upper = _mm256_shuffle_epi8(table, high);
    const __m256i lower = _mm256_andnot_si256(nibble, _mm256_slli_epi16(codes, 4));
    const __m256i words[] = {_mm256_unpacklo_epi8(lower, upper),
                             _mm256_unpackhi_epi8(lower, upper)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      // The bytes' order is c0 c2 c1 c3: a pair's columns are both lower or both upper words.
      to[i] =
          _mm256_castsi256_ps(pair == 0 ? _mm256_slli_epi32(words[i], 16)
                                        : _mm256_and_si256(words[i], _mm256_set1_epi32(-65536)));
    }
    if (!normal) [[unlikely]]
      rare(codes, pair, to);
  }

 private:
  MORACLE_UKERNEL_INLINE static void rare(__m256i codes, int pair, __m256 (&to)[2]) {
    const __m256i words[] = {_mm256_unpacklo_epi8(codes, _mm256_setzero_si256()),
                             _mm256_unpackhi_epi8(codes, _mm256_setzero_si256())};
    for (int i = 0; i < 2; ++i) {
      to[i] = any_e4m3(pair == 0 ? _mm256_and_si256(words[i], _mm256_set1_epi32(255))
                                 : _mm256_srli_epi32(words[i], 16));
    }
  }
};

MORACLE_UKERNEL_INLINE __m256 broadcast_pair(const std::byte* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}

/// sum += w · x. With many sums, pin each to its register: g++ 12 would load all rows first and
/// spill sums.
template <bool kPins>
MORACLE_UKERNEL_INLINE void add_product(__m256& sum, __m256 w, __m256 x) {
  if constexpr (kPins)
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(w), "x"(x));
  else
    sum = _mm256_fmadd_ps(w, x, sum);
}

/// bias plus the zero points of rows (0, 0, 1, 1, 4, 4, 5, 5) and (2, 2, 3, 3, 6, 6, 7, 7).
template <bool kZeros>
MORACLE_UKERNEL_INLINE void biases_of(const DotArgs& b, int panel, int segment, int half,
                                      float bias, __m256 (&to)[2]) {
  to[0] = to[1] = _mm256_set1_ps(bias);
  if constexpr (kZeros) {
    const __m256 zero =
        _mm256_cvtepi32_ps(widen_bytes(b.w_zero[panel] + segment * kPanelRows + half * kHalfRows));
    to[0] = _mm256_add_ps(to[0], _mm256_unpacklo_ps(zero, zero));
    to[1] = _mm256_add_ps(to[1], _mm256_unpackhi_ps(zero, zero));
  }
}

/// One row multiplies whole row blocks. Several rows multiply half row blocks, since sixteen
/// registers hold no more sums. Fewer than eight sums would expose the latency of the FMA, so two
/// rows of 4-bit codes keep two partial sums of each. For bytes, unpacking is the bottleneck.
template <class Codes, int kRows, bool kZeros>
void rows_of_floats(const DotArgs& b) {
  constexpr int kHalves = kRows == 1 ? 2 : 1, kSets = kRows == 2 && Codes::kFours == 2 ? 2 : 1;
  constexpr bool kPins = kRows > (Codes::kFours == 2 ? 4 : 3);
  for (int segment = 0; segment < b.segments; ++segment) {
    for (int p = 0; p < b.panels; ++p) {
      for (int first = 0; first < 2; first += kHalves) {
        __m256 sum[kRows][kHalves][kSets][2], bias[kHalves][2];
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          biases_of<kZeros>(b, p, segment, first + half, Codes::kBias, bias[half]);
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
            for (int k = 0; k < kSets; ++k)
              sum[r][half][k][0] = sum[r][half][k][1] = _mm256_setzero_ps();
          }
        }
        for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
          // Each half prefetches every other row block, so that memory is equally busy in both.
          if (b.prefetch_every > 0 && (kHalves == 2 || (i & 1) == first))
            prefetch_line(b.prefetch[p] + i * kRowBlockBytes);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half) {
            const std::byte* const row_block = b.w[p] + i * kRowBlockBytes;
            const __m256i codes =
                Codes::prepared(columns_0213(load_half(row_block + (first + half) * kHalfBytes)));
            const bool normal = Codes::all_normal(codes);
#pragma GCC unroll 4
            for (int pair = 0; pair < 2 * Codes::kFours; ++pair) {
              __m256 w[2];
              Codes::floats(codes, normal, pair / 2, pair % 2, bias[half], w);
              const int64_t column = (i * Codes::kFours * 2 + pair) * 2;
#pragma GCC unroll 8
              for (int r = 0; r < kRows; ++r) {
                const __m256 x = broadcast_pair(b.x + r * b.x_stride + column * 4);
                __m256(&s)[2] = sum[r][half][pair % kSets];
                add_product<kPins>(s[0], w[0], x);
                add_product<kPins>(s[1], w[1], x);
              }
            }
          }
        }
        __m256 kept[kRows][kHalves][kSets][2];
        keep<kRows * kHalves * kSets * 2>(&sum[0][0][0][0], &kept[0][0][0][0]);
#pragma GCC unroll 1
        for (int r = 0; r < kRows; ++r) {
          for (int half = 0; half < kHalves; ++half) {
            const __m256(&s)[kSets][2] = kept[r][half];
            __m256 dot = _mm256_hadd_ps(s[0][0], s[0][1]);
            if constexpr (kSets == 2) dot = _mm256_add_ps(dot, _mm256_hadd_ps(s[1][0], s[1][1]));
            add_scaled(dot, b, r, p, segment, first + half);
          }
        }
      }
    }
  }
}

// ---- 16 bits: two columns in a row block, any number of rows ----

struct Bf16Codes : F32Dot {
  static constexpr int kCols = 2;
  MORACLE_UKERNEL_INLINE static __m256 weights(const std::byte* p, int c) {
    const __m256i pairs = load_half(p);
    if (c == 1) return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
    // Shift with a shuffle: vpslld would share the ports of the multiply-adds.
    const __m256i up = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13));
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(pairs, up));
  }
};

struct F16Codes : F32Dot {
  static constexpr int kCols = 2;
  MORACLE_UKERNEL_INLINE static __m256 weights(const std::byte* p, int c) {
    // Within each lane, then in each half: four rows' first columns, then their second columns.
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i apart = _mm256_shuffle_epi8(load_half(p), order);
    const __m256i columns = _mm256_permute4x64_epi64(apart, 0xd8);
    return _mm256_cvtph_ps(c == 0 ? _mm256_castsi256_si128(columns)
                                  : _mm256_extracti128_si256(columns, 1));
  }
};

template <class Codes, bool kZeros>
void floats_by(const DotArgs& b) {
  switch (b.rows) {
    case 1:
      return rows_of_floats<Codes, 1, kZeros>(b);
    case 2:
      return rows_of_floats<Codes, 2, kZeros>(b);
    case 3:
      return rows_of_floats<Codes, 3, kZeros>(b);
    case 4:
      return rows_of_floats<Codes, 4, kZeros>(b);
    case 5:
      return rows_of_floats<Codes, 5, kZeros>(b);
    default:
      return rows_of_floats<Codes, 6, kZeros>(b);
  }
}
template <class Codes>
void integers_by(const DotArgs& b) {
  b.w_zero[0] == nullptr ? floats_by<Codes, false>(b) : floats_by<Codes, true>(b);
}

}  // namespace

void dot_x_i8_w_i4_r32_avx2(const DotArgs& b) {
  multiply_codes<I4Codes>(b);
}
void dot_x_i8_w_e2m1_r32_avx2(const DotArgs& b) {
  multiply_codes<E2M1Codes>(b);
}
void dot_x_i8_w_i8_r32_avx2(const DotArgs& b) {
  multiply<Int8Dot>(b);
}
void dot_x_i16_w_i4_r32_avx2(const DotArgs& b) {
  multiply_words<I4Words>(b);
}
void dot_x_i16_w_i8_r32_avx2(const DotArgs& b) {
  multiply_words<I8Words>(b);
}
void dot_x_i16_w_e2m1_r32_avx2(const DotArgs& b) {
  multiply_words<E2M1Words>(b);
}
void dot_x_f32_w_bf16_r32_avx2(const DotArgs& b) {
  multiply<Bf16Codes>(b);
}
void dot_x_f32_w_f16_r32_avx2(const DotArgs& b) {
  multiply<F16Codes>(b);
}
void dot_x_f32_w_f32_r32_avx2(const DotArgs& b) {
  multiply<F32Dot>(b);
}
void dot_x_f32_w_i4_r6_avx2(const DotArgs& b) {
  integers_by<Integers<I4>>(b);
}
void dot_x_f32_w_i8_r6_avx2(const DotArgs& b) {
  integers_by<Integers<I8>>(b);
}
void dot_x_f32_w_e4m3_r6_avx2(const DotArgs& b) {
  floats_by<E4M3, false>(b);
}
void dot_x_f32_w_e2m1_r6_avx2(const DotArgs& b) {
  floats_by<Integers<E2M1>, false>(b);
}

}  // namespace moracle::cpu

#endif
