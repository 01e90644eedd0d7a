// Few rows times codes for AVX2, and the products of f32 that AVX-VNNI takes from here.
//
// No instruction makes f32 of a column's bytes, which lie four apart. Where bf16 holds a code, its
// two bytes come from tables of 16 (vpshufb), one for the upper and one for the lower; interleaved
// they are words, and a word's columns are the upper halves of f32. So a dword of a register of
// products belongs to two columns of a row, which are added at the end of a unit:
//
//   bytes of a lane      r0: c0 c2 c1 c3   r1: …       after the columns are put in this order
//   words, first half    r0: c0 c2 | c1 c3   r1: …     second half: r2, r3
//   f32, lower words     r0: c0, c1   r1: c0, c1       times x0 x1 x0 x1
//   f32, upper words     r0: c2, c3   r1: c2, c3       times x2 x3 x2 x3

#if defined(__x86_64__)

#include "kernels/cpu/lines_codes_avx2.inc"

namespace moracle::cpu {
namespace {

// ---- bf16 by its bytes ----

struct Bytes {
  __m256i upper, lower;
};

MORACLE_LINES_INLINE __m256i table(const int8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}
MORACLE_LINES_INLINE __m256i columns_0213(__m256i codes) {
  return _mm256_shuffle_epi8(codes, _mm256_broadcastsi128_si256(_mm_setr_epi8(
                                        0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15)));
}

// The bytes of bf16 for each 4-bit code.
struct I4 {
  alignas(16) static constexpr int8_t kUpper[16] = {0x00, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                    0x40, 0x40, -63,  -64,  -64,  -64,
                                                    -64,  -64,  -64,  -65};  // c1, c0 and bf
  alignas(16) static constexpr int8_t kLower[16] = {0x00, -128, 0x00, 0x40, -128, -96,  -64,  -32,
                                                    0x00, -32,  -64,  -96,  -128, 0x40, 0x00, -128};
};
struct E2M1 {
  alignas(16) static constexpr int8_t kUpper[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                                    -128, -65,  -65,  -65,  -64,  -64,  -64,  -64};
  alignas(16) static constexpr int8_t kLower[16] = {0x00, 0x00, -128, -64, 0x00, 0x40, -128, -64,
                                                    0x00, 0x00, -128, -64, 0x00, 0x40, -128, -64};
};

/// 4-bit codes: columns 0 to 3 of eight in the low halves, 4 to 7 in the high ones.
template <class Values>
struct Nibbles {
  static constexpr int kFours = 2;
  MORACLE_LINES_INLINE static void bytes(__m256i codes, Bytes* to) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i upper = table(Values::kUpper), lower = table(Values::kLower);
    const __m256i low = _mm256_and_si256(codes, nibble),
                  high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
    to[0] = {_mm256_shuffle_epi8(upper, low), _mm256_shuffle_epi8(lower, low)};
    to[1] = {_mm256_shuffle_epi8(upper, high), _mm256_shuffle_epi8(lower, high)};
  }
  MORACLE_LINES_INLINE static bool all_normal(__m256i) { return true; }
};

// The code's exponent and mantissa in place, with 7 - 127 added to the exponent: the lower byte is
// the code's lower half, the upper follows from the upper. Zeros, numbers below the normal ones and
// NaN are rare and go another way.
struct E4M3 {
  static constexpr int kFours = 1;
  alignas(16) static constexpr int8_t kUpper[16] = {60,  61,  62,  63,  64,  65,  66,  67,
                                                    -68, -67, -66, -65, -64, -63, -62, -61};
  MORACLE_LINES_INLINE static void bytes(__m256i codes, Bytes* to) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibble);
    to[0] = {_mm256_shuffle_epi8(table(kUpper), high),
             _mm256_andnot_si256(nibble, _mm256_slli_epi16(codes, 4))};
  }
  MORACLE_LINES_INLINE static bool all_normal(__m256i codes) {
    // 8 to 126 without the sign: neither size - 8 nor size + 1 has the highest bit.
    const __m256i size = _mm256_and_si256(codes, _mm256_set1_epi8(0x7f));
    const __m256i outside = _mm256_or_si256(_mm256_sub_epi8(size, _mm256_set1_epi8(8)),
                                            _mm256_add_epi8(size, _mm256_set1_epi8(1)));
    return _mm256_movemask_epi8(outside) == 0;
  }
};

/// e4m3 in the low bytes of dwords, whatever it is.
MORACLE_LINES_INLINE __m256 any_e4m3(__m256i code) {
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

/// f32 of four columns: rows (0, 1, 4, 5), then (2, 3, 6, 7), each first columns 0 and 1, then 2
/// and 3.
MORACLE_LINES_INLINE void floats_of(Bytes bytes, __m256 (&to)[2][2]) {
  const __m256i words[] = {_mm256_unpacklo_epi8(bytes.lower, bytes.upper),
                           _mm256_unpackhi_epi8(bytes.lower, bytes.upper)};
  const __m256i above = _mm256_set1_epi32(-65536);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    to[i][0] = _mm256_castsi256_ps(_mm256_slli_epi32(words[i], 16));
    to[i][1] = _mm256_castsi256_ps(_mm256_and_si256(words[i], above));
  }
}
MORACLE_LINES_INLINE void rare_floats_of(__m256i codes, __m256 (&to)[2][2]) {
  const __m256i words[] = {_mm256_unpacklo_epi8(codes, _mm256_setzero_si256()),
                           _mm256_unpackhi_epi8(codes, _mm256_setzero_si256())};
  for (int i = 0; i < 2; ++i) {
    to[i][0] = any_e4m3(_mm256_and_si256(words[i], _mm256_set1_epi32(255)));
    to[i][1] = any_e4m3(_mm256_srli_epi32(words[i], 16));
  }
}

MORACLE_LINES_INLINE __m256 broadcast_pair(const std::byte* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm256_castpd_ps(_mm256_set1_pd(pair));
}

/// Zero points of rows (0, 0, 1, 1, 4, 4, 5, 5) and (2, 2, 3, 3, 6, 6, 7, 7).
MORACLE_LINES_INLINE void zeros_of(const LineBlock& b, int panel, int unit, int half,
                                   __m256 (&to)[2]) {
  const __m256 zero =
      _mm256_cvtepi32_ps(widen_bytes(b.w_zero[panel] + unit * kLineRows + half * kHalfRows));
  to[0] = _mm256_unpacklo_ps(zero, zero);
  to[1] = _mm256_unpackhi_ps(zero, zero);
}

/// One row meets whole lines, several of them halves: sixteen registers hold the sums of no more.
/// Fewer than eight sums would wait for each other: two rows have two parts of each.
template <class Codes, int kRows, bool kZeros>
void rows_of_floats(const LineBlock& b) {
  constexpr int kHalves = kRows == 1 ? 2 : 1, kParts = kRows == 2 ? 2 : 1;
  for (int unit = 0; unit < b.units; ++unit) {
    for (int p = 0; p < b.panels; ++p) {
      for (int first = 0; first < 2; first += kHalves) {
        __m256 sum[kRows][kHalves][kParts][2], zero[kHalves][2];
#pragma GCC unroll 2
        for (int half = 0; half < kHalves; ++half) {
          if constexpr (kZeros) zeros_of(b, p, unit, first + half, zero[half]);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
            for (int k = 0; k < kParts; ++k)
              sum[r][half][k][0] = sum[r][half][k][1] = _mm256_setzero_ps();
          }
        }
        for (int64_t i = unit * b.unit_lines, end = i + b.unit_lines; i < end; ++i) {
          // Each half asks for every other line, so that memory is as busy under both.
          if (b.prefetch_every > 0 && (kHalves == 2 || (i & 1) == first))
            prefetch_line(b.prefetch[p] + i * kLineBytes);
#pragma GCC unroll 2
          for (int half = 0; half < kHalves; ++half) {
            const __m256i codes =
                columns_0213(load_half(b.lines[p] + i * kLineBytes + (first + half) * kHalfBytes));
            Bytes bytes[Codes::kFours];
            Codes::bytes(codes, bytes);
            const bool normal = Codes::all_normal(codes);
#pragma GCC unroll 2
            for (int four = 0; four < Codes::kFours; ++four) {
              __m256 w[2][2];
              floats_of(bytes[four], w);
              if (!normal) [[unlikely]]
                rare_floats_of(codes, w);
              const int64_t column = (i * Codes::kFours + four) * 4;
#pragma GCC unroll 2
              for (int c = 0; c < 2; ++c) {
                if constexpr (kZeros) {
                  w[0][c] = _mm256_sub_ps(w[0][c], zero[half][0]);
                  w[1][c] = _mm256_sub_ps(w[1][c], zero[half][1]);
                }
#pragma GCC unroll 4
                for (int r = 0; r < kRows; ++r) {
                  const __m256 x = broadcast_pair(b.x + r * b.x_stride + (column + 2 * c) * 4);
                  __m256(&s)[2] = sum[r][half][c % kParts];
                  s[0] = _mm256_fmadd_ps(w[0][c], x, s[0]);
                  s[1] = _mm256_fmadd_ps(w[1][c], x, s[1]);
                }
              }
            }
          }
        }
        __m256 kept[kRows][kHalves][kParts][2];
        keep<kRows * kHalves * kParts * 2>(&sum[0][0][0][0], &kept[0][0][0][0]);
#pragma GCC unroll 1
        for (int r = 0; r < kRows; ++r) {
          for (int half = 0; half < kHalves; ++half) {
            const __m256(&s)[kParts][2] = kept[r][half];
            __m256 dot = _mm256_hadd_ps(s[0][0], s[0][1]);
            if constexpr (kParts == 2) dot = _mm256_add_ps(dot, _mm256_hadd_ps(s[1][0], s[1][1]));
            add_scaled(dot, b, r, p, unit, first + half);
          }
        }
      }
    }
  }
}

// ---- int8 ----

/// No table makes bf16 of eight bits: integers become f32 column by column.
template <int kRows, bool kZeros>
void rows_of_bytes(const LineBlock& b) {
  constexpr int kParts = kRows <= 2 ? 4 / kRows : 1;
  for (int unit = 0; unit < b.units; ++unit) {
    for (int p = 0; p < b.panels; ++p) {
      __m256 sum[2][kRows][kParts];
      __m256i zero[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        if constexpr (kZeros)
          zero[half] = widen_bytes(b.w_zero[p] + unit * kLineRows + half * kHalfRows);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
          for (int k = 0; k < kParts; ++k) sum[half][r][k] = _mm256_setzero_ps();
        }
      }
      for (int64_t i = unit * b.unit_lines, end = i + b.unit_lines; i < end; ++i) {
        if (b.prefetch_every > 0) prefetch_line(b.prefetch[p] + i * kLineBytes);
        const __m256i codes[2] = {load_half(b.lines[p] + i * kLineBytes),
                                  load_half(b.lines[p] + i * kLineBytes + kHalfBytes)};
#pragma GCC unroll 4
        for (int c = 0; c < 4; ++c) {
          __m256 w[2];
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            __m256i value = _mm256_srai_epi32(_mm256_slli_epi32(codes[half], 24 - 8 * c), 24);
            if constexpr (kZeros) value = _mm256_sub_epi32(value, zero[half]);
            w[half] = _mm256_cvtepi32_ps(value);
          }
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m256 x = F32Dot::activations(b.x + r * b.x_stride + (i * 4 + c) * 4);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
              __m256* const s = &sum[half][r][c % kParts];
              *s = _mm256_fmadd_ps(w[half], x, *s);
            }
          }
        }
      }
      __m256 kept[2][kRows][kParts];
      keep<2 * kRows * kParts>(&sum[0][0][0], &kept[0][0][0]);
#pragma GCC unroll 1
      for (int r = 0; r < kRows; ++r) {
        for (int half = 0; half < 2; ++half) {
          __m256 dot = kept[half][r][0];
          for (int k = 1; k < kParts; ++k) dot = _mm256_add_ps(dot, kept[half][r][k]);
          add_scaled(dot, b, r, p, unit, half);
        }
      }
    }
  }
}

template <class Codes, bool kZeros>
void floats_by(const LineBlock& b) {
  switch (b.rows) {
    case 1:
      return rows_of_floats<Codes, 1, kZeros>(b);
    case 2:
      return rows_of_floats<Codes, 2, kZeros>(b);
    case 3:
      return rows_of_floats<Codes, 3, kZeros>(b);
    default:
      return rows_of_floats<Codes, 4, kZeros>(b);
  }
}
template <bool kZeros>
void floats_by_bytes(const LineBlock& b) {
  switch (b.rows) {
    case 1:
      return rows_of_bytes<1, kZeros>(b);
    case 2:
      return rows_of_bytes<2, kZeros>(b);
    case 3:
      return rows_of_bytes<3, kZeros>(b);
    default:
      return rows_of_bytes<4, kZeros>(b);
  }
}

}  // namespace

void f32_by_i4_avx2(const LineBlock& b) {
  b.w_zero[0] == nullptr ? floats_by<Nibbles<I4>, false>(b) : floats_by<Nibbles<I4>, true>(b);
}
void f32_by_i8_avx2(const LineBlock& b) {
  b.w_zero[0] == nullptr ? floats_by_bytes<false>(b) : floats_by_bytes<true>(b);
}
void f32_by_e4m3_avx2(const LineBlock& b) {
  floats_by<E4M3, false>(b);
}
void f32_by_e2m1_avx2(const LineBlock& b) {
  floats_by<Nibbles<E2M1>, false>(b);
}

const CodeKernels kAvx2Codes = kCodes;

}  // namespace moracle::cpu

#endif
