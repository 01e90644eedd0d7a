// The loops over lines for registers of 512 bits, written once and included by the files built for
// AVX-512. `Dot` defines how 4 bytes of activations multiply a line.
//
// Everything is in an anonymous namespace, for the reason given in tile_loops.h.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/gemm/lines.h"

#define MORACLE_LINES_INLINE [[gnu::always_inline]] inline

namespace moracle::cpu {
namespace {

MORACLE_LINES_INLINE void prefetch_line(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}

MORACLE_LINES_INLINE __m512i load_line(const std::byte* p) {
  return _mm512_load_si512(p);
}

MORACLE_LINES_INLINE __m512 unit_scale(const LineBlock& b, int panel, int unit) {
  return b.w_scale[panel] == nullptr ? _mm512_set1_ps(1)
                                     : _mm512_loadu_ps(b.w_scale[panel] + unit * kLineRows);
}
MORACLE_LINES_INLINE __m512 x_scaled(__m512 dot, const LineBlock& b, int row, int unit) {
  if (b.x_scale == nullptr) return dot;
  return _mm512_mul_ps(dot,
                       _mm512_set1_ps(b.x_scale[row * b.x_scale_stride + unit * b.x_scale_unit]));
}

/// sum += scales · dot, for one row, one panel and one unit. Rounds as every other loop here does,
/// so that integers give the same bits in every loop.
MORACLE_LINES_INLINE void add_scaled(__m512 dot, const LineBlock& b, int row, int panel, int unit) {
  float* const sum = b.sum[panel] + row * kLineRows;
  const bool begins = b.overwrite && unit == 0;
  const __m512 before = begins ? _mm512_setzero_ps() : _mm512_loadu_ps(sum);
  _mm512_storeu_ps(
      sum, _mm512_fmadd_ps(x_scaled(dot, b, row, unit), unit_scale(b, panel, unit), before));
}

/// sum - zero · Σ x
MORACLE_LINES_INLINE __m512i without_zero(__m512i sum, const LineBlock& b, int panel, int unit,
                                          int32_t x_sum) {
  if (b.w_zero[panel] == nullptr) return sum;
  const __m512i zero = _mm512_cvtepi8_epi32(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(b.w_zero[panel] + unit * kLineRows)));
  return _mm512_sub_epi32(sum, _mm512_mullo_epi32(zero, _mm512_set1_epi32(x_sum)));
}

struct Int8Dot {
  using Sum = __m512i;
  /// The instruction takes unsigned bytes on one side. Weights enter as w + 128, and finish()
  /// subtracts 128 Σ x.
  static constexpr int kOffset = 128;
  MORACLE_LINES_INLINE static Sum zero() { return _mm512_setzero_si512(); }
  MORACLE_LINES_INLINE static __m512i weights(const std::byte* p) {
    return _mm512_xor_si512(load_line(p), _mm512_set1_epi8(-128));
  }
  MORACLE_LINES_INLINE static __m512i activations(const std::byte* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
  }
  MORACLE_LINES_INLINE static Sum add(Sum sum, __m512i x, __m512i w) {
    return _mm512_dpbusd_epi32(sum, w, x);
  }
  MORACLE_LINES_INLINE static __m512 finish(Sum sum, const LineBlock& b, int row, int panel,
                                            int unit) {
    const int32_t x_sum = b.x_sum[row * b.x_sum_stride + unit];
    sum = _mm512_sub_epi32(sum, _mm512_set1_epi32(kOffset * x_sum));
    return _mm512_cvtepi32_ps(without_zero(sum, b, panel, unit, x_sum));
  }
};

struct F32Dot {
  using Sum = __m512;
  MORACLE_LINES_INLINE static Sum zero() { return _mm512_setzero_ps(); }
  MORACLE_LINES_INLINE static __m512 weights(const std::byte* p) { return _mm512_load_ps(p); }
  MORACLE_LINES_INLINE static __m512 activations(const std::byte* p) {
    float x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_ps(x);
  }
  MORACLE_LINES_INLINE static Sum add(Sum sum, __m512 x, __m512 w) {
    return _mm512_fmadd_ps(x, w, sum);
  }
  MORACLE_LINES_INLINE static __m512 finish(Sum sum, const LineBlock&, int, int, int) {
    return sum;
  }
};

#if defined(__AVX512BF16__)
struct Bf16Dot {
  using Sum = __m512;
  MORACLE_LINES_INLINE static Sum zero() { return _mm512_setzero_ps(); }
  MORACLE_LINES_INLINE static __m512i weights(const std::byte* p) { return load_line(p); }
  MORACLE_LINES_INLINE static __m512i activations(const std::byte* p) {
    return Int8Dot::activations(p);
  }
  MORACLE_LINES_INLINE static Sum add(Sum sum, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
  MORACLE_LINES_INLINE static __m512 finish(Sum sum, const LineBlock&, int, int, int) {
    return sum;
  }
};
#endif

/// kRows x kPanels sums in registers, over one unit. The order of summation is the same for any
/// number of rows, so a row's result does not depend on its neighbours.
template <class Dot, int kRows, int kPanels>
MORACLE_LINES_INLINE void unit_of(const LineBlock& b, int first, int unit) {
  typename Dot::Sum sum[kRows][kPanels];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) sum[r][p] = Dot::zero();
  }
  const int64_t begin = unit * b.unit_lines, end = begin + b.unit_lines;
  const std::byte* const x = b.x + first * b.x_stride;
  const int64_t stride = b.x_stride;
  // Keep only products in the inner loop. With the prefetch branch inside, g++ 12 moves every sum
  // from register to register.
  const int64_t every = b.prefetch_every > 0 ? b.prefetch_every : b.unit_lines;
  for (int64_t i = begin; i < end;) {
    const int64_t stretch = i / every;
    if (b.prefetch_every > 0 && i == stretch * every) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) prefetch_line(b.prefetch[p] + stretch * kLineBytes);
    }
    const int64_t past = (stretch + 1) * every, stop = past < end ? past : end;
    for (; i < stop; ++i) {
      decltype(Dot::weights(b.lines[0])) w[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) w[p] = Dot::weights(b.lines[p] + i * kLineBytes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto a = Dot::activations(x + r * stride + i * 4);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) sum[r][p] = Dot::add(sum[r][p], a, w[p]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p)
      add_scaled(Dot::finish(sum[r][p], b, first + r, p, unit), b, first + r, p, unit);
  }
}

template <class Dot, int kRows, int kPanels>
void block_of(const LineBlock& b, int first) {
  for (int unit = 0; unit < b.units; ++unit) unit_of<Dot, kRows, kPanels>(b, first, unit);
}

template <class Dot, int kPanels>
void rows_of(const LineBlock& b) {
  int row = 0;
  for (; row + 8 <= b.rows; row += 8) block_of<Dot, 8, kPanels>(b, row);
  switch (b.rows - row) {
    case 1:
      return block_of<Dot, 1, kPanels>(b, row);
    case 2:
      return block_of<Dot, 2, kPanels>(b, row);
    case 3:
      return block_of<Dot, 3, kPanels>(b, row);
    case 4:
      return block_of<Dot, 4, kPanels>(b, row);
    case 5:
      return block_of<Dot, 5, kPanels>(b, row);
    case 6:
      return block_of<Dot, 6, kPanels>(b, row);
    case 7:
      return block_of<Dot, 7, kPanels>(b, row);
    default:
      return;
  }
}

inline void finish_rows(const LineResult& result) {
  const LineResult f = result;  // a local copy: no store below can alias it
  const auto stored = static_cast<__mmask16>((1u << f.columns) - 1);
  const __m512 scale = f.w_scale == nullptr ? _mm512_set1_ps(1) : _mm512_loadu_ps(f.w_scale);
  const __m512 bias = f.bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(f.bias);
  for (int r = 0; r < f.rows; ++r) {
    __m512 v = _mm512_loadu_ps(f.sum + r * kLineRows);
    if (f.x_scale != nullptr) v = _mm512_mul_ps(v, _mm512_set1_ps(f.x_scale[r * f.x_scale_stride]));
    if (f.w_scale != nullptr) v = _mm512_mul_ps(v, scale);
    if (f.bias != nullptr) v = _mm512_add_ps(v, bias);
    float* const to = f.to + (f.to_row == nullptr ? r : f.to_row[r]) * f.to_stride;
    if (f.add) {
      const __m512 weight = _mm512_set1_ps(f.weight == nullptr ? 1.0f : f.weight[r]);
      v = _mm512_fmadd_ps(weight, v, _mm512_maskz_loadu_ps(stored, to));
    }
    _mm512_mask_storeu_ps(to, stored, v);
  }
}

template <class Dot>
void multiply(const LineBlock& b) {
  if (b.panels == 2)
    rows_of<Dot, 2>(b);
  else
    rows_of<Dot, 1>(b);
}

}  // namespace
}  // namespace moracle::cpu
