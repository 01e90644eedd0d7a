// AVX-512 with VNNI. Few rows multiply codes without intermediate row blocks of int8 or f32, which
// would be written and read only once.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_avx512.h"

namespace moracle::cpu {
namespace {

// Totals stay in registers over all segments.
template <int kRows, int kPanels>
MORACLE_UKERNEL_INLINE void load_totals(const DotArgs& b, __m512 (&total)[kRows][kPanels]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      total[r][p] = b.overwrite ? _mm512_setzero_ps() : _mm512_loadu_ps(b.sum[p] + r * kPanelRows);
  }
}
template <int kRows, int kPanels>
MORACLE_UKERNEL_INLINE void store_totals(const DotArgs& b, const __m512 (&total)[kRows][kPanels]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(b.sum[p] + r * kPanelRows, total[r][p]);
  }
}

// ---- int8 times 4 bits ----

// The unsigned operand of the instruction is code + 2^kOffsetBits. A row block holds 8 columns of
// each row: columns 0 to 3 in the low halves of its bytes.
struct I4Dot : Int8Dot {
  static constexpr int kCalls = 2;
  static constexpr int kOffset = 8;
  MORACLE_UKERNEL_INLINE static __m512i values(__m512i codes) {
    // (codes ^ 8) & 15
    return _mm512_ternarylogic_epi32(codes, _mm512_set1_epi8(8), _mm512_set1_epi8(15), 0x28);
  }
};
struct E2M1Dot : Int8Dot {
  static constexpr int kCalls = 2;
  static constexpr bool kShortSegments = true;
  static constexpr int kOffset = 12;
  MORACLE_UKERNEL_INLINE static __m512i values(__m512i codes) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table),
                               _mm512_and_si512(codes, _mm512_set1_epi8(15)));
  }
};
template <class Codes>
struct Nibbles8 : Codes {
  MORACLE_UKERNEL_INLINE static Int8Dot::Sum begin(const int32_t* x_sum) {
    return _mm512_mullo_epi32(_mm512_set1_epi32(*x_sum), _mm512_set1_epi32(-Codes::kOffset));
  }
  MORACLE_UKERNEL_INLINE static __m512i weights(const std::byte* p, int half) {
    const __m512i codes = load_row_block(p);
    return Codes::values(half == 0 ? codes : _mm512_srli_epi16(codes, 4));
  }
};

// ---- f32 times codes ----

alignas(64) constexpr float kI4Values[16] = {0,  1,  2,  3,  4,  5,  6,  7,
                                             -8, -7, -6, -5, -4, -3, -2, -1};
alignas(64) constexpr float kE2M1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                               4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                               -2.0f, -3.0f, -4.0f, -6.0f};

template <const float* kTable>
struct Nibbles {
  static constexpr int kCols = 8;
  static constexpr float kScale = 1;
  MORACLE_UKERNEL_INLINE static void values(__m512i codes, __m512* to) {
    const __m512 table = _mm512_load_ps(kTable);
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c) {
      const auto shift = static_cast<unsigned>(c < 4 ? 8 * c : 8 * (c - 4) + 4);
      to[c] = _mm512_permutexvar_ps(_mm512_srli_epi32(codes, shift), table);
    }
  }
};

struct Bytes {
  static constexpr int kCols = 4;
  static constexpr float kScale = 1;
  MORACLE_UKERNEL_INLINE static void values(__m512i codes, __m512* to) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i top = _mm512_slli_epi32(codes, static_cast<unsigned>(24 - 8 * c));
      to[c] = _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
    }
  }
};

// The code's exponent and mantissa move to their f32 positions. The exponent's bias lacks
// 2^4 - 1 - 7, so all values are 2^-8 of the true values. Zeros, subnormals and NaN are rare and
// take another path.
struct E4M3 {
  static constexpr int kCols = 4;
  static constexpr float kScale = 256;
  MORACLE_UKERNEL_INLINE static void values(__m512i codes, __m512* to) {
    const __m512i size = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const __mmask64 normal =
        _mm512_cmplt_epu8_mask(_mm512_sub_epi8(size, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x77));
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512i top = _mm512_slli_epi32(codes, static_cast<unsigned>(24 - 8 * c));
      // (top >> 4 & sign, exponent and mantissa) | 112 in the exponent
      to[c] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
          _mm512_srai_epi32(top, 4), _mm512_set1_epi32(static_cast<int>(0x87f00000)),
          _mm512_set1_epi32(0x38000000), 0xea));
    }
    if (normal != ~__mmask64{0}) [[unlikely]]
      rare(size, to);
  }

 private:
  MORACLE_UKERNEL_INLINE static void rare(__m512i sizes, __m512* to) {
    for (int c = 0; c < 4; ++c) {
      const __m512i size = _mm512_and_si512(_mm512_srl_epi32(sizes, _mm_cvtsi32_si128(8 * c)),
                                            _mm512_set1_epi32(0x7f));
      const __mmask16 small = _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(8));
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(size, _mm512_set1_epi32(0x7f));
      const __m512 sign = _mm512_and_ps(to[c], _mm512_set1_ps(-0.0f));
      const __m512 value = _mm512_mul_ps(_mm512_cvtepi32_ps(size), _mm512_set1_ps(0x1p-17f));
      to[c] = _mm512_mask_or_ps(to[c], small, value, sign);
      to[c] = _mm512_mask_mov_ps(to[c], nan, _mm512_set1_ps(__builtin_nanf("")));
    }
  }
};

/// Each segment's sums are split into two chains, because a single chain exposes the latency.
template <class Codes, int kRows, int kPanels, bool kZeros>
void rows_of_floats(const DotArgs& b) {
  __m512 total[kRows][kPanels];
  load_totals<kRows, kPanels>(b, total);
  for (int segment = 0; segment < b.segments; ++segment) {
    __m512 sum[kRows][kPanels][2], zero[kPanels];
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kZeros) {
        zero[p] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.w_zero[p] + segment * kPanelRows))));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][p][0] = sum[r][p][1] = _mm512_setzero_ps();
    }
    for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        __m512 w[Codes::kCols];
        Codes::values(load_row_block(b.w[p] + i * kRowBlockBytes), w);
        if (b.prefetch_every > 0) prefetch_line(b.prefetch[p] + i * kRowBlockBytes);
#pragma GCC unroll 8
        for (int c = 0; c < Codes::kCols; ++c) {
          if constexpr (kZeros) w[c] = _mm512_sub_ps(w[c], zero[p]);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const __m512 x = F32Dot::activations(b.x + r * b.x_stride + (i * Codes::kCols + c) * 4);
            sum[r][p][c & 1] = _mm512_fmadd_ps(w[c], x, sum[r][p][c & 1]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const __m512 scale = segment_scale(b, p, segment);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m512 dot = _mm512_add_ps(sum[r][p][0], sum[r][p][1]);
        if constexpr (Codes::kScale != 1) dot = _mm512_mul_ps(dot, _mm512_set1_ps(Codes::kScale));
        total[r][p] = _mm512_fmadd_ps(x_scaled(dot, b, r, segment), scale, total[r][p]);
      }
    }
  }
  store_totals<kRows, kPanels>(b, total);
}

template <class Codes, int kRows, bool kZeros>
void panels_of_floats(const DotArgs& b) {
  b.panels == 2 ? rows_of_floats<Codes, kRows, 2, kZeros>(b)
                : rows_of_floats<Codes, kRows, 1, kZeros>(b);
}

template <class Codes, bool kZeros>
void floats_by(const DotArgs& b) {
  switch (b.rows) {
    case 1:
      return panels_of_floats<Codes, 1, kZeros>(b);
    case 2:
      return panels_of_floats<Codes, 2, kZeros>(b);
    case 3:
      return panels_of_floats<Codes, 3, kZeros>(b);
    default:
      return panels_of_floats<Codes, 4, kZeros>(b);
  }
}

template <class Codes>
void integers_by(const DotArgs& b) {
  b.w_zero[0] == nullptr ? floats_by<Codes, false>(b) : floats_by<Codes, true>(b);
}

}  // namespace

void dot_x_i8_w_i4_r8_avx512vnni(const DotArgs& b) {
  multiply<Nibbles8<I4Dot>>(b);
}
void dot_x_i8_w_e2m1_r8_avx512vnni(const DotArgs& b) {
  multiply<Nibbles8<E2M1Dot>>(b);
}
void dot_x_i8_w_i8_r8_avx512vnni(const DotArgs& b) {
  multiply<Int8Dot>(b);
}
void dot_x_f32_w_bf16_r8_avx512vnni(const DotArgs& b) {
  multiply<Bf16Codes>(b);
}
void dot_x_f32_w_f16_r8_avx512vnni(const DotArgs& b) {
  multiply<F16Codes>(b);
}
void dot_x_f32_w_f32_r8_avx512vnni(const DotArgs& b) {
  multiply<F32Dot>(b);
}
void dot_x_f32_w_i4_r4_avx512vnni(const DotArgs& b) {
  integers_by<Nibbles<kI4Values>>(b);
}
void dot_x_f32_w_i8_r4_avx512vnni(const DotArgs& b) {
  integers_by<Bytes>(b);
}
void dot_x_f32_w_e4m3_r4_avx512vnni(const DotArgs& b) {
  floats_by<E4M3, false>(b);
}
void dot_x_f32_w_e2m1_r4_avx512vnni(const DotArgs& b) {
  floats_by<Nibbles<kE2M1Values>, false>(b);
}

}  // namespace moracle::cpu

#endif
