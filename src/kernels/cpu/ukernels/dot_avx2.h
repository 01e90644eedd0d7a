// The loops over row blocks for registers of 256 bits, written once and included by the files built
// for AVX2, with or without AVX-VNNI. A row block is two registers: rows 0 to 7 of the weights, and
// 8 to 15. `Dot` defines how 4 bytes of activations multiply one register, or one of its kCols
// columns.
//
// Everything is in an anonymous namespace, for the reason given in simd/vector.h. The order of sums
// and roundings is that of dot_avx512.h, so results have the same bits.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/ukernels/args.h"

#define MORACLE_UKERNEL_INLINE [[gnu::always_inline]] inline

namespace moracle::cpu {
namespace {

constexpr int kHalfRows = 8;
constexpr int kHalfBytes = 32;

MORACLE_UKERNEL_INLINE void prefetch_line(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}
/// Prefetches cache line `line` of the next codes.
MORACLE_UKERNEL_INLINE void prefetch_next(const DotArgs& b, int panel, int64_t line) {
  const int64_t jump = line >= b.prefetch_switch ? b.prefetch_jump[panel] : 0;
  prefetch_line(b.prefetch[panel] + line * kRowBlockBytes + jump);
}
MORACLE_UKERNEL_INLINE __m256i load_half(const std::byte* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}
MORACLE_UKERNEL_INLINE __m256i broadcast_bytes(const std::byte* p) {
  int32_t x;
  __builtin_memcpy(&x, p, sizeof x);
  return _mm256_set1_epi32(x);
}
/// Eight signed bytes as i32.
MORACLE_UKERNEL_INLINE __m256i widen_bytes(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

MORACLE_UKERNEL_INLINE __m256 segment_scale(const DotArgs& b, int panel, int segment, int half) {
  if (b.w_scale[panel] == nullptr) return _mm256_set1_ps(1);
  return _mm256_loadu_ps(b.w_scale[panel] + segment * kPanelRows + half * kHalfRows);
}
MORACLE_UKERNEL_INLINE __m256 x_scaled(__m256 dot, const DotArgs& b, int row, int segment) {
  if (b.x_scale == nullptr) return dot;
  return _mm256_mul_ps(
      dot, _mm256_set1_ps(b.x_scale[row * b.x_scale_stride + segment * b.x_scale_step]));
}

/// sum += scales · dot, for one row, half a panel and one segment.
MORACLE_UKERNEL_INLINE void add_scaled(__m256 dot, const DotArgs& b, int row, int panel,
                                       int segment, int half) {
  float* const sum = b.sum[panel] + row * kPanelRows + half * kHalfRows;
  const bool begins = b.overwrite && segment == 0;
  const __m256 before = begins ? _mm256_setzero_ps() : _mm256_loadu_ps(sum);
  _mm256_storeu_ps(sum, _mm256_fmadd_ps(x_scaled(dot, b, row, segment),
                                        segment_scale(b, panel, segment, half), before));
}

/// sum - zero · Σ x
MORACLE_UKERNEL_INLINE __m256i without_zero(__m256i sum, const DotArgs& b, int panel, int segment,
                                            int half, int32_t x_sum) {
  if (b.w_zero[panel] == nullptr) return sum;
  const __m256i zero = widen_bytes(b.w_zero[panel] + segment * kPanelRows + half * kHalfRows);
  return _mm256_sub_epi32(sum, _mm256_mullo_epi32(zero, _mm256_set1_epi32(x_sum)));
}

/// Stores the sums of a loop to memory, where the epilogue reads them. Otherwise compilers move
/// sums from register to register inside the loop to suit the epilogue.
template <int kCount, class Sum>
MORACLE_UKERNEL_INLINE void keep(const Sum* sums, Sum* to) {
#pragma GCC unroll 16
  for (int i = 0; i < kCount; ++i) to[i] = sums[i];
  __asm__ volatile("" : : "r"(to) : "memory");
}

// ---- int8 ----

#if defined(__AVXVNNI__)
/// sum + four products of unsigned and signed bytes in each lane.
MORACLE_UKERNEL_INLINE __m256i add_products(__m256i sum, __m256i bytes, __m256i x) {
  return _mm256_dpbusd_avx_epi32(sum, bytes, x);
}

struct Int8Dot {
  using Sum = __m256i;
  static constexpr int kCols = 1;
  static constexpr int kMostRows = 6;  // 12 sums, two halves of a row block, activations, and 128
  static constexpr int kOffset = 128;  // as in dot_avx512.h
  struct Weights {
    __m256i plus_offset;
  };
  MORACLE_UKERNEL_INLINE static Sum zero() { return _mm256_setzero_si256(); }
  MORACLE_UKERNEL_INLINE static Weights weights(const std::byte* p, int) {
    return {_mm256_xor_si256(load_half(p), _mm256_set1_epi8(-128))};
  }
  MORACLE_UKERNEL_INLINE static __m256i activations(const std::byte* p) {
    return broadcast_bytes(p);
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m256i x, Weights w) {
    return add_products(sum, w.plus_offset, x);
  }
#else
/// sum + four products of unsigned and signed bytes in each lane. The products of two neighbours
/// must together fit into 16 bits.
MORACLE_UKERNEL_INLINE __m256i add_products(__m256i sum, __m256i bytes, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(bytes, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/// The instruction multiplies unsigned bytes by signed ones and adds two such products into 16
/// bits. To fit, w · x is computed as |w| · (x with the sign of w). |w| is at most 128, which the
/// unsigned side holds. |x| is at most 127, since the scale of a row is its largest value / 127.
/// So x changes its sign within 8 bits, and 2 · 128 · 127 = 32,512 is below 32,768. Where w is 0,
/// x becomes 0. No code saturates.
struct Int8Dot {
  using Sum = __m256i;
  static constexpr int kCols = 1;
  static constexpr int kMostRows = 4;  // 8 sums, two halves and their sizes, ones, two temporaries
  static constexpr int kOffset = 0;
  struct Weights {
    __m256i value, size;
  };
  MORACLE_UKERNEL_INLINE static Sum zero() { return _mm256_setzero_si256(); }
  MORACLE_UKERNEL_INLINE static Weights weights(const std::byte* p, int) {
    const __m256i value = load_half(p);
    return {value, _mm256_abs_epi8(value)};
  }
  MORACLE_UKERNEL_INLINE static __m256i activations(const std::byte* p) {
    return broadcast_bytes(p);
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m256i x, Weights w) {
    return add_products(sum, w.size, _mm256_sign_epi8(x, w.value));
  }
#endif
  MORACLE_UKERNEL_INLINE static __m256 finish(Sum sum, const DotArgs& b, int row, int panel,
                                              int segment, int half) {
    const int32_t x_sum = b.x_sum[row * b.x_sum_stride + segment];
    if constexpr (kOffset != 0) sum = _mm256_sub_epi32(sum, _mm256_set1_epi32(kOffset * x_sum));
    return _mm256_cvtepi32_ps(without_zero(sum, b, panel, segment, half, x_sum));
  }
};

// ---- f32 ----

struct F32Dot {
  using Sum = __m256;
  static constexpr int kCols = 1;
  static constexpr int kMostRows = 6;
  MORACLE_UKERNEL_INLINE static Sum zero() { return _mm256_setzero_ps(); }
  MORACLE_UKERNEL_INLINE static __m256 weights(const std::byte* p, int) {
    return _mm256_load_ps(reinterpret_cast<const float*>(p));
  }
  MORACLE_UKERNEL_INLINE static __m256 activations(const std::byte* p) {
    return _mm256_castsi256_ps(broadcast_bytes(p));
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m256 x, __m256 w) {
    return _mm256_fmadd_ps(x, w, sum);
  }
  MORACLE_UKERNEL_INLINE static __m256 finish(Sum sum, const DotArgs&, int, int, int, int) {
    return sum;
  }
};

// ---- blocks ----

/// kRows x kPanels sums in registers, over one segment. The order of summation is the same for any
/// number of rows. The panels are b's from `panel` on.
template <class Dot, int kRows, int kPanels, bool kPrefetches>
MORACLE_UKERNEL_INLINE void segment_of(const DotArgs& b, int first, int panel, int segment) {
  typename Dot::Sum sum[kRows][kPanels][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) sum[r][p][0] = sum[r][p][1] = Dot::zero();
  }
  const int64_t begin = segment * b.segment_blocks, end = begin + b.segment_blocks;
  const std::byte* const x = b.x + first * b.x_stride;
  const int64_t stride = b.x_stride;
  for (int64_t i = begin; i < end; ++i) {
#pragma GCC unroll 2
    for (int c = 0; c < Dot::kCols; ++c) {
      decltype(Dot::weights(b.w[0], 0)) w[kPanels][2];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const std::byte* const row_block = b.w[panel + p] + i * kRowBlockBytes;
        w[p][0] = Dot::weights(row_block, c);
        w[p][1] = Dot::weights(row_block + kHalfBytes, c);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const auto a = Dot::activations(x + r * stride + (i * Dot::kCols + c) * 4);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          sum[r][p][0] = Dot::add(sum[r][p][0], a, w[p][0]);
          sum[r][p][1] = Dot::add(sum[r][p][1], a, w[p][1]);
        }
      }
    }
    if (kPrefetches && (i & (b.prefetch_every - 1)) == 0) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) prefetch_next(b, panel + p, i / b.prefetch_every);
    }
  }
  typename Dot::Sum kept[kRows][kPanels][2];
  keep<kRows * kPanels * 2>(&sum[0][0][0], &kept[0][0][0]);
#pragma GCC unroll 1
  for (int r = 0; r < kRows; ++r) {
    for (int p = 0; p < kPanels; ++p) {
      for (int half = 0; half < 2; ++half) {
        const __m256 dot = Dot::finish(kept[r][p][half], b, first + r, panel + p, segment, half);
        add_scaled(dot, b, first + r, panel + p, segment, half);
      }
    }
  }
}

template <class Dot, int kRows, int kPanels>
void block_of(const DotArgs& b, int first, int panel) {
  // Only the first rows prefetch the next panels: once is enough.
  const bool prefetches = first == 0 && b.prefetch_every > 0;
  for (int segment = 0; segment < b.segments; ++segment) {
    prefetches ? segment_of<Dot, kRows, kPanels, true>(b, first, panel, segment)
               : segment_of<Dot, kRows, kPanels, false>(b, first, panel, segment);
  }
}

template <class Dot>
void rows_of(const DotArgs& b, int first, int rows, int panel) {
  switch (rows) {
    case 1:
      return block_of<Dot, 1, 1>(b, first, panel);
    case 2:
      return block_of<Dot, 2, 1>(b, first, panel);
    case 3:
      return block_of<Dot, 3, 1>(b, first, panel);
    case 4:
      return block_of<Dot, 4, 1>(b, first, panel);
    default:
      break;
  }
  if constexpr (Dot::kMostRows == 6)
    rows == 5 ? block_of<Dot, 5, 1>(b, first, panel) : block_of<Dot, 6, 1>(b, first, panel);
}

template <class Dot>
void multiply(const DotArgs& b) {
  // With one panel, one or two rows have too few sums to hide the latency.
  if (b.panels == 2 && b.rows == 1) return block_of<Dot, 1, 2>(b, 0, 0);
  if constexpr (Dot::kMostRows == 6) {
    if (b.panels == 2 && b.rows == 2) return block_of<Dot, 2, 2>(b, 0, 0);
  }
  // Split rows evenly: one row takes as long as three.
  const int blocks = (b.rows + Dot::kMostRows - 1) / Dot::kMostRows;
  for (int panel = 0; panel < b.panels; ++panel) {
    for (int block = 0; block < blocks; ++block) {
      const int first = b.rows * block / blocks, last = b.rows * (block + 1) / blocks;
      rows_of<Dot>(b, first, last - first, panel);
    }
  }
}

}  // namespace
}  // namespace moracle::cpu
