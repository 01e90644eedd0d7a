// AVX-512 with VNNI. Few rows multiply codes without intermediate row blocks of int8 or f32, which
// would be written and read only once.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot.h"

namespace moracle::cpu {
namespace {

// Totals stay in registers over all segments.
template <int kRows, int kPanels>
MORACLE_VECTOR_INLINE void load_totals(const DotArgs& b, Vec (&total)[kRows][kPanels]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      total[r][p] = b.overwrite ? Vec{} : load(b.sum[p] + r * kPanelRows);
  }
}
template <int kRows, int kPanels>
MORACLE_VECTOR_INLINE void store_totals(const DotArgs& b, const Vec (&total)[kRows][kPanels]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) store(b.sum[p] + r * kPanelRows, total[r][p]);
  }
}

// ---- f32 times codes ----

// The code's exponent and mantissa move to their f32 positions. The exponent's bias lacks
// 2^4 - 1 - 7, so all values are 2^-8 of the true values. Zeros, subnormals and NaN are rare and
// take another path.
struct E4M3 {
  static constexpr int kColumns = 4;
  static constexpr float kScale = 256;
  MORACLE_VECTOR_INLINE static void values(__m512i codes, __m512* to) {
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
  MORACLE_VECTOR_INLINE static void rare(__m512i sizes, __m512* to) {
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

/// The columns of a row block, as a code type of codes.h gives them.
template <class Code>
struct Columns {
  static constexpr int kColumns = Code::kColumns;
  static constexpr float kScale = 1;
  MORACLE_VECTOR_INLINE static void values(__m512i codes, __m512* to) {
    MORACLE_VECTOR_UNROLL
    for (int c = 0; c < kColumns; ++c) to[c] = Code::value(as<Bits>(codes), c, Vec{});
  }
};

/// Each segment's sums are split into two chains, because a single chain exposes the latency.
template <class Code, int kRows, int kPanels, bool kZeros>
void rows_of_floats(const DotArgs& b) {
  Vec total[kRows][kPanels];
  load_totals<kRows, kPanels>(b, total);
  for (int segment = 0; segment < b.segments; ++segment) {
    Vec sum[kRows][kPanels][2], zero[kPanels] = {};
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (kZeros) zero[p] = to_float(widen_bytes(b.w_zero[p] + segment * kPanelRows));
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][p][0] = sum[r][p][1] = Vec{};
    }
    for (int64_t i = segment * b.segment_blocks, end = i + b.segment_blocks; i < end; ++i) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        __m512 w[Code::kColumns];
        Code::values(_mm512_load_si512(b.w[p] + i * kRowBlockBytes), w);
        if (b.prefetch_every > 0) prefetch_line(b.prefetch[p] + i * kRowBlockBytes);
#pragma GCC unroll 8
        for (int c = 0; c < Code::kColumns; ++c) {
          if constexpr (kZeros) w[c] -= zero[p];
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const Vec x = F32Dot::activations(b.x + r * b.x_stride + (i * Code::kColumns + c) * 4);
            sum[r][p][c & 1] = multiply_add(w[c], x, sum[r][p][c & 1]);
          }
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      const Vec scale = segment_scale(b, p, segment, 0);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        Vec dot = sum[r][p][0] + sum[r][p][1];
        if constexpr (Code::kScale != 1) dot = dot * Code::kScale;
        total[r][p] = multiply_add(x_scaled(dot, b, r, segment), scale, total[r][p]);
      }
    }
  }
  store_totals<kRows, kPanels>(b, total);
}

template <class Code, int kRows, bool kZeros>
void panels_of_floats(const DotArgs& b) {
  b.panels == 2 ? rows_of_floats<Code, kRows, 2, kZeros>(b)
                : rows_of_floats<Code, kRows, 1, kZeros>(b);
}

template <class Code, bool kZeros>
void floats_by(const DotArgs& b) {
  switch (b.rows) {
    case 1:
      return panels_of_floats<Code, 1, kZeros>(b);
    case 2:
      return panels_of_floats<Code, 2, kZeros>(b);
    case 3:
      return panels_of_floats<Code, 3, kZeros>(b);
    default:
      return panels_of_floats<Code, 4, kZeros>(b);
  }
}

template <class Code>
void integers_by(const DotArgs& b) {
  b.w_zero[0] == nullptr ? floats_by<Code, false>(b) : floats_by<Code, true>(b);
}

}  // namespace

void dot_x_i8_w_i4_r8_avx512vnni(const DotArgs& b) {
  multiply<NibblesDot<I4Bytes>>(b);
}
void dot_x_i8_w_e2m1_r8_avx512vnni(const DotArgs& b) {
  multiply<NibblesDot<E2M1Bytes>>(b);
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
  integers_by<Columns<IntCode<4>>>(b);
}
void dot_x_f32_w_i8_r4_avx512vnni(const DotArgs& b) {
  integers_by<Columns<IntCode<8>>>(b);
}
void dot_x_f32_w_e4m3_r4_avx512vnni(const DotArgs& b) {
  floats_by<E4M3, false>(b);
}
void dot_x_f32_w_e2m1_r4_avx512vnni(const DotArgs& b) {
  floats_by<Columns<E2M1Code>, false>(b);
}

}  // namespace moracle::cpu

#endif
