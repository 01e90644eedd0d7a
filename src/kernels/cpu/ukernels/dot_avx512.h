// The loops over row blocks for registers of 512 bits, written once and included by the files built
// for AVX-512. `Dot` defines how 4 bytes of activations multiply a row block.
//
// Everything is in an anonymous namespace, for the reason given in simd/vector.h.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/ukernels/args.h"

#define MORACLE_UKERNEL_INLINE [[gnu::always_inline]] inline

namespace moracle::cpu {
namespace {

MORACLE_UKERNEL_INLINE void prefetch_line(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1);
}
/// Prefetches cache line `line` of the next codes.
MORACLE_UKERNEL_INLINE void prefetch_next(const DotArgs& b, int panel, int64_t line) {
  const int64_t jump = line >= b.prefetch_switch ? b.prefetch_jump[panel] : 0;
  prefetch_line(b.prefetch[panel] + line * kRowBlockBytes + jump);
}

MORACLE_UKERNEL_INLINE __m512i load_row_block(const std::byte* p) {
  return _mm512_load_si512(p);
}

MORACLE_UKERNEL_INLINE __m512 segment_scale(const DotArgs& b, int panel, int segment) {
  return b.w_scale[panel] == nullptr ? _mm512_set1_ps(1)
                                     : _mm512_loadu_ps(b.w_scale[panel] + segment * kPanelRows);
}
MORACLE_UKERNEL_INLINE __m512 x_scaled(__m512 dot, const DotArgs& b, int row, int segment) {
  if (b.x_scale == nullptr) return dot;
  return _mm512_mul_ps(
      dot, _mm512_set1_ps(b.x_scale[row * b.x_scale_stride + segment * b.x_scale_step]));
}

MORACLE_UKERNEL_INLINE __m512i zero_points(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// sum - zero · Σ x
MORACLE_UKERNEL_INLINE __m512i less_zero(__m512i sum, __m512i zero, int32_t x_sum) {
  return _mm512_sub_epi32(sum, _mm512_mullo_epi32(zero, _mm512_set1_epi32(x_sum)));
}
MORACLE_UKERNEL_INLINE __m512i without_zero(__m512i sum, const DotArgs& b, int panel, int segment,
                                            int32_t x_sum) {
  if (b.w_zero[panel] == nullptr) return sum;
  return less_zero(sum, zero_points(b.w_zero[panel] + segment * kPanelRows), x_sum);
}

struct Int8Dot {
  using Sum = __m512i;
  using Weights = __m512i;
  static constexpr bool kIntegers = true;
  static constexpr int kCalls = 1;               ///< of add() per row block
  static constexpr bool kHasRare = false;        ///< codes that weights() unpacks wrongly
  static constexpr bool kShortSegments = false;  ///< of 16 or 32 columns
  /// The instruction takes unsigned bytes on one side. Weights enter as w + 128, and sums begin at
  /// -128 Σ x.
  static constexpr int kOffsetBits = 7;
  MORACLE_UKERNEL_INLINE static Sum begin(const int32_t* x_sum) {
    return _mm512_sub_epi32(_mm512_setzero_si512(),
                            _mm512_slli_epi32(_mm512_set1_epi32(*x_sum), kOffsetBits));
  }
  MORACLE_UKERNEL_INLINE static __m512i weights(const std::byte* p, int) {
    return _mm512_xor_si512(load_row_block(p), _mm512_set1_epi8(-128));
  }
  MORACLE_UKERNEL_INLINE static __m512i activations(const std::byte* p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m512i x, __m512i w) {
    return _mm512_dpbusd_epi32(sum, w, x);
  }
  MORACLE_UKERNEL_INLINE static __m512 finish(Sum sum) { return _mm512_cvtepi32_ps(sum); }
};

struct F32Dot {
  using Sum = __m512;
  using Weights = __m512;
  static constexpr bool kIntegers = false;
  static constexpr int kCalls = 1;
  static constexpr bool kHasRare = false;
  static constexpr bool kShortSegments = false;
  MORACLE_UKERNEL_INLINE static Sum begin(const int32_t*) { return _mm512_setzero_ps(); }
  MORACLE_UKERNEL_INLINE static __m512 weights(const std::byte* p, int) {
    return _mm512_load_ps(p);
  }
  MORACLE_UKERNEL_INLINE static __m512 activations(const std::byte* p) {
    float x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_ps(x);
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m512 x, __m512 w) {
    return _mm512_fmadd_ps(x, w, sum);
  }
  MORACLE_UKERNEL_INLINE static __m512 finish(Sum sum) { return sum; }
};

/// Row blocks of bf16 times f32: two columns in a row block.
struct Bf16Codes : F32Dot {
  static constexpr int kCalls = 2;
  MORACLE_UKERNEL_INLINE static __m512 weights(const std::byte* p, int column) {
    const __m512i pairs = load_row_block(p);
    return _mm512_castsi512_ps(column == 0 ? _mm512_slli_epi32(pairs, 16)
                                           : _mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }
};

/// Row blocks of f16 times f32, likewise.
struct F16Codes : F32Dot {
  static constexpr int kCalls = 2;
  MORACLE_UKERNEL_INLINE static __m512 weights(const std::byte* p, int column) {
    const __m512i pairs = load_row_block(p);
    return _mm512_cvtph_ps(
        _mm512_cvtepi32_epi16(column == 0 ? pairs : _mm512_srli_epi32(pairs, 16)));
  }
};

#if defined(__AVX512BF16__)
struct Bf16Dot {
  using Sum = __m512;
  using Weights = __m512i;
  static constexpr bool kIntegers = false;
  static constexpr int kCalls = 1;
  static constexpr bool kHasRare = false;
  static constexpr bool kShortSegments = false;
  MORACLE_UKERNEL_INLINE static Sum begin(const int32_t*) { return _mm512_setzero_ps(); }
  MORACLE_UKERNEL_INLINE static __m512i weights(const std::byte* p, int) {
    return load_row_block(p);
  }
  MORACLE_UKERNEL_INLINE static __m512i activations(const std::byte* p) {
    return Int8Dot::activations(p);
  }
  MORACLE_UKERNEL_INLINE static Sum add(Sum sum, __m512i x, __m512i w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
  MORACLE_UKERNEL_INLINE static __m512 finish(Sum sum) { return sum; }
};
#endif

/// The sums of kRows x kPanels, in registers. Few rows of integers have two sums each: with one,
/// each product would wait for the previous one. Integers can be summed in any order.
template <class Dot, int kRows, int kPanels>
struct Sums {
  static constexpr int kSets = Dot::kIntegers && Dot::kCalls == 2 && kRows <= 4 ? 2 : 1;
  typename Dot::Sum of[kRows][kPanels];
  typename Dot::Sum second[kSets == 2 ? kRows : 1][kPanels];

  /// One test for the codes of all panels.
  MORACLE_UKERNEL_INLINE static bool any_rare(const std::byte* const (&row_blocks)[kPanels],
                                              int64_t i) {
    if constexpr (!Dot::kHasRare) {
      return false;
    } else {
      __m512i rarity = Dot::rarity(row_blocks[0] + i * kRowBlockBytes);
      if constexpr (kPanels == 2)
        rarity = _mm512_max_epu8(rarity, Dot::rarity(row_blocks[1] + i * kRowBlockBytes));
      return Dot::is_rare(rarity);
    }
  }

  /// Adds row block `i` of each panel. `x` points to the first row.
  MORACLE_UKERNEL_INLINE void add(const std::byte* const (&row_blocks)[kPanels], const std::byte* x,
                                  int64_t x_stride, int64_t i) {
    const bool rare = any_rare(row_blocks, i);
#pragma GCC unroll 4
    for (int c = 0; c < Dot::kCalls; ++c) {
      typename Dot::Weights w[kPanels];
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) w[p] = Dot::weights(row_blocks[p] + i * kRowBlockBytes, c);
      if constexpr (Dot::kHasRare) {
        if (rare) [[unlikely]] {
          for (int p = 0; p < kPanels; ++p)
            w[p] = Dot::rare_weights(row_blocks[p] + i * kRowBlockBytes, c);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const auto a = Dot::activations(x + r * x_stride + (i * Dot::kCalls + c) * 4);
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) {
          auto& sum = kSets == 2 && c == 1 ? second[r][p] : of[r][p];
          sum = Dot::add(sum, a, w[p]);
        }
      }
    }
  }
};

/// kRows rows times kPanels panels, segment by segment. The order of summation is the same for any
/// number of rows, so a row's result does not depend on its neighbours.
template <class Dot, int kRows, int kPanels>
void block_of(const DotArgs& b, int first) {
  // Locals: the compiler must assume that a store changes the block.
  alignas(64) static constexpr float kOnes[kPanelRows] = {1, 1, 1, 1, 1, 1, 1, 1,
                                                          1, 1, 1, 1, 1, 1, 1, 1};
  const int64_t x_stride = b.x_stride, segment_blocks = b.segment_blocks,
                x_sum_stride = b.x_sum_stride;
  const std::byte* const x = b.x + first * x_stride;
  const int32_t* x_sum = b.x_sum + first * x_sum_stride;
  const float* x_scale = b.x_scale == nullptr ? nullptr : b.x_scale + first * b.x_scale_stride;
  const int64_t x_scale_stride = b.x_scale_stride, x_scale_step = b.x_scale_step;
  const int64_t scale_step = b.w_scale[0] == nullptr ? 0 : kPanelRows;
  const bool zeros = b.w_zero[0] != nullptr, prefetches = b.prefetch_every > 0;
  const int every = prefetches ? __builtin_ctz(static_cast<unsigned>(b.prefetch_every)) : 0;
  const std::byte* row_blocks[kPanels];
  const float* w_scale[kPanels];
  const int8_t* w_zero[kPanels];
  float* total[kPanels];
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) {
    row_blocks[p] = b.w[p];
    w_scale[p] = scale_step == 0 ? kOnes : b.w_scale[p];
    w_zero[p] = b.w_zero[p];
    total[p] = b.sum[p] + first * kPanelRows;
  }
  // Few totals of short segments stay in registers. With segments of 128 columns that costs int4 3
  // %.
  constexpr bool kKeeps = Dot::kShortSegments && kRows * kPanels <= 8;
  __m512 kept[kRows][kPanels];
  if constexpr (kKeeps) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p)
        kept[r][p] = b.overwrite ? _mm512_setzero_ps() : _mm512_loadu_ps(total[p] + r * kPanelRows);
    }
  }
  bool begins = b.overwrite;
  int64_t i = 0;
  for (int segment = 0; segment < b.segments; ++segment) {
    Sums<Dot, kRows, kPanels> sum;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto begin = Dot::begin(x_sum + r * x_sum_stride);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        sum.of[r][p] = begin;
        if constexpr (sum.kSets == 2) sum.second[r][p] = _mm512_setzero_si512();
      }
    }
    // Keep only products in the inner loop. With the prefetch branch inside, g++ 12 moves every sum
    // from register to register.
    const int64_t end = i + segment_blocks;
    while (i < end) {
      const int64_t line = i >> every, past = (line + 1) << every;
      if (prefetches && i == line << every) {
#pragma GCC unroll 2
        for (int p = 0; p < kPanels; ++p) prefetch_next(b, p, line);
      }
      const int64_t stop = prefetches && past < end ? past : end;
      for (; i < stop; ++i) sum.add(row_blocks, x, x_stride, i);
    }
    // Read the activations' sums again: kept in registers, they would push products' operands out.
    __asm__("" : "+r"(x_sum));
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
      if constexpr (sum.kSets == 2) {
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r)
          sum.of[r][p] = _mm512_add_epi32(sum.of[r][p], sum.second[r][p]);
      }
      if constexpr (Dot::kIntegers) {
        if (zeros) {
          const __m512i zero = zero_points(w_zero[p]);
          w_zero[p] += kPanelRows;
#pragma GCC unroll 16
          for (int r = 0; r < kRows; ++r)
            sum.of[r][p] = less_zero(sum.of[r][p], zero, x_sum[r * x_sum_stride]);
        }
      }
      const __m512 scale = _mm512_loadu_ps(w_scale[p]);
      w_scale[p] += scale_step;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        __m512 dot = Dot::finish(sum.of[r][p]);
        if (x_scale != nullptr)
          dot = _mm512_mul_ps(dot, _mm512_set1_ps(x_scale[r * x_scale_stride]));
        if constexpr (kKeeps) {
          kept[r][p] = _mm512_fmadd_ps(dot, scale, kept[r][p]);
        } else {
          float* const to = total[p] + r * kPanelRows;
          _mm512_storeu_ps(
              to, _mm512_fmadd_ps(dot, scale, begins ? _mm512_setzero_ps() : _mm512_loadu_ps(to)));
        }
      }
    }
    begins = false;
    if constexpr (Dot::kIntegers) ++x_sum;
    if (x_scale != nullptr) x_scale += x_scale_step;
  }
  if constexpr (kKeeps) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(total[p] + r * kPanelRows, kept[r][p]);
    }
  }
}

template <class Dot, int kPanels>
void rows_of(const DotArgs& b) {
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

template <class Dot>
void multiply(const DotArgs& b) {
  if (b.panels == 2)
    rows_of<Dot, 2>(b);
  else
    rows_of<Dot, 1>(b);
}

}  // namespace
}  // namespace moracle::cpu
