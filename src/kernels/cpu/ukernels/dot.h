// The loops over row blocks, written once and included by the files built for AVX2 and AVX-512.
//
// The order of sums and roundings is the same for all instruction sets and any number of rows, so a
// row's result does not depend on its neighbours.
#pragma once

#include "kernels/cpu/ukernels/dot_operands.h"

namespace moracle::cpu {
namespace {

MORACLE_VECTOR_INLINE void prefetch_line(const std::byte* p) {
  __builtin_prefetch(p, 0, 2);
}
/// Prefetches cache line `line` of the next codes of kPanels panels.
template <int kPanels = 1>
MORACLE_VECTOR_INLINE void prefetch_next(const DotArgs& b, int panel, int64_t line) {
  MORACLE_VECTOR_UNROLL
  for (int p = panel; p < panel + kPanels; ++p) {
    const int64_t jump = line >= b.prefetch_switch ? b.prefetch_jump[p] : 0;
    prefetch_line(b.prefetch[p] + line * kRowBlockBytes + jump);
  }
}
MORACLE_VECTOR_INLINE Vec segment_scale(const DotArgs& b, int panel, int segment, int vector) {
  return b.w_scale[panel] == nullptr
             ? splat(1)
             : load(b.w_scale[panel] + segment * kPanelRows + vector * kLanes);
}
MORACLE_VECTOR_INLINE Vec x_scaled(Vec dot, const DotArgs& b, int row, int segment) {
  if (b.x_scale == nullptr) return dot;
  return dot * splat(b.x_scale[row * b.x_scale_stride + segment * b.x_scale_step]);
}

/// Stores the sums of a loop to memory, where the epilogue reads them. Otherwise compilers move
/// sums from register to register inside the loop to suit the epilogue.
template <int kCount, class Sum>
MORACLE_VECTOR_INLINE void keep(const Sum* sums, Sum* to) {
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < kCount; ++i) to[i] = sums[i];
  __asm__ volatile("" : : "r"(to) : "memory");
}

// ---- blocks of rows ----

/// The sums of kRows x kPanels, in registers. Few rows of integers have two sums each: with one,
/// each product would wait for the previous one. Integers can be summed in any order.
template <class Dot, int kRows, int kPanels>
struct Sums {
  static constexpr bool kSpare = kFewRegisters ? kRows * kPanels <= 2 : kRows <= 4;
  static constexpr int kSets = Dot::kIntegers && Dot::kCalls == 2 && kSpare ? 2 : 1;
  typename Dot::Sum of[kRows][kPanels][kVectors];
  typename Dot::Sum second[kSets == 2 ? kRows : 1][kPanels][kVectors];
  Vec zero[kPanels][kVectors];  // zero points, of Dot::kZeros

  /// Adds row block `i` of each panel. `x` points to the first row.
  MORACLE_VECTOR_INLINE void add(const std::byte* const (&row_blocks)[kPanels], const std::byte* x,
                                 int64_t x_stride, int64_t i) {
    const std::byte* vectors[kPanels][kVectors];
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kVectors; ++v)
        vectors[p][v] = row_blocks[p] + i * kRowBlockBytes + v * kVectorBytes;
    }
    x += i * Dot::kCalls * 4;
    if constexpr (Dot::kHasRare) {
      if (any_rare(vectors)) [[unlikely]]
        return add_products_of<true>(vectors, x, x_stride);
    }
    add_products_of<false>(vectors, x, x_stride);
  }

 private:
  /// One test for the codes of all panels.
  MORACLE_VECTOR_INLINE static bool any_rare(const std::byte* const (&vectors)[kPanels][kVectors]) {
    auto rarity = E4M3Code::rarity(load_bits(vectors[0][0]));
    MORACLE_VECTOR_UNROLL
    for (int k = 1; k < kPanels * kVectors; ++k) {
      const Bits codes = load_bits(vectors[k / kVectors][k % kVectors]);
      rarity = E4M3Code::rarer(rarity, E4M3Code::rarity(codes));
    }
    return E4M3Code::is_rare(rarity);
  }

  template <bool kRare>
  MORACLE_VECTOR_INLINE void add_products_of(const std::byte* const (&vectors)[kPanels][kVectors],
                                             const std::byte* x, int64_t x_stride) {
    MORACLE_VECTOR_UNROLL
    for (int c = 0; c < Dot::kCalls; ++c) {
      typename Dot::Weights w[kPanels][kVectors];
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          if constexpr (kRare)
            w[p][v] = Dot::rare_weights(vectors[p][v], c);
          else
            w[p][v] = Dot::weights(vectors[p][v], c);
          if constexpr (Dot::kZeros) w[p][v] -= zero[p][v];
        }
      }
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto a = Dot::activations(x + r * x_stride + c * 4);
        MORACLE_VECTOR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          MORACLE_VECTOR_UNROLL
          for (int v = 0; v < kVectors; ++v) {
            auto& sum = kSets == 2 && c == 1 ? second[r][p][v] : of[r][p][v];
            Dot::template add<kRows>(sum, a, w[p][v]);
          }
        }
      }
    }
  }
};

/// kRows rows times kPanels panels from `panel` on, segment by segment.
template <class Dot, int kRows, int kPanels>
void block_of(const DotArgs& b, int first, int panel) {
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
  const bool zeros = b.w_zero[0] != nullptr;
  // Only the first rows prefetch the next panels: once is enough.
  const bool prefetches = b.prefetch_every > 0 && first == 0;
  const int every = prefetches ? __builtin_ctz(static_cast<unsigned>(b.prefetch_every)) : 0;
  const int64_t mask = (int64_t{1} << every) - 1;
  const std::byte* row_blocks[kPanels];
  const float* w_scale[kPanels];
  const int8_t* w_zero[kPanels];
  float* total[kPanels];
  MORACLE_VECTOR_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    row_blocks[p] = b.w[panel + p];
    w_scale[p] = scale_step == 0 ? kOnes : b.w_scale[panel + p];
    w_zero[p] = b.w_zero[panel + p];
    total[p] = b.sum[panel + p] + first * kPanelRows;
  }
  // Few totals of short segments stay in registers. With segments of 128 columns that costs int4 3
  // %.
  constexpr bool kKeeps = !kFewRegisters && Dot::kShortSegments && kRows * kPanels <= 8;
  Vec kept[kRows][kPanels];
  if constexpr (kKeeps) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p)
        kept[r][p] = b.overwrite ? Vec{} : load(total[p] + r * kPanelRows);
    }
  }
  bool begins = b.overwrite;
  int64_t i = 0;
  for (int segment = 0; segment < b.segments; ++segment) {
    Sums<Dot, kRows, kPanels> sum;
    if constexpr (Dot::kZeros) {
      MORACLE_VECTOR_UNROLL
      for (int k = 0; k < kPanels * kVectors; ++k)
        sum.zero[k / kVectors][k % kVectors] =
            to_float(widen_bytes(w_zero[k / kVectors] + k % kVectors * kLanes));
    }
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto begin = Dot::begin(x_sum + r * x_sum_stride);
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        MORACLE_VECTOR_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          sum.of[r][p][v] = begin;
          if constexpr (sum.kSets == 2) sum.second[r][p][v] = typename Dot::Sum{};
        }
      }
    }
    const int64_t end = i + segment_blocks;
    if constexpr (kFewRegisters) {
      for (; i < end; ++i) {
        sum.add(row_blocks, x, x_stride, i);
        if (prefetches && (i & mask) == 0) prefetch_next<kPanels>(b, panel, i >> every);
      }
    } else {
      // Keep only products in the inner loop. With the prefetch branch inside, g++ 12 moves every
      // sum from register to register.
      while (i < end) {
        if (prefetches && (i & mask) == 0) prefetch_next<kPanels>(b, panel, i >> every);
        const int64_t past = (i | mask) + 1, stop = prefetches && past < end ? past : end;
        for (; i < stop; ++i) sum.add(row_blocks, x, x_stride, i);
      }
    }
    // Read the activations' sums again: kept in registers, they would push products' operands out.
    __asm__("" : "+r"(x_sum));
    if constexpr (sum.kSets == 2) {
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) {
        MORACLE_VECTOR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          MORACLE_VECTOR_UNROLL
          for (int v = 0; v < kVectors; ++v) sum.of[r][p][v] += sum.second[r][p][v];
        }
      }
    }
    if constexpr (kFewRegisters) {
      typename Dot::Sum stored[kRows][kPanels][kVectors];
      keep<kRows * kPanels * kVectors>(&sum.of[0][0][0], &stored[0][0][0]);
      __builtin_memcpy(sum.of, stored, sizeof stored);
    }
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (Dot::kIntegers) {
          if (zeros) {
            const Ints zero = widen_bytes(w_zero[p] + v * kLanes);
            MORACLE_VECTOR_UNROLL
            for (int r = 0; r < kRows; ++r) sum.of[r][p][v] -= zero * x_sum[r * x_sum_stride];
          }
        }
        const Vec scale = load(w_scale[p] + v * kLanes);
        MORACLE_VECTOR_UNROLL
        for (int r = 0; r < kRows; ++r) {
          Vec dot = Dot::finish(sum.of[r][p][v]);
          if (x_scale != nullptr) dot = dot * splat(x_scale[r * x_scale_stride]);
          if constexpr (kKeeps) {
            kept[r][p] = multiply_add(dot, scale, kept[r][p]);
          } else {
            float* const to = total[p] + r * kPanelRows + v * kLanes;
            store(to, multiply_add(dot, scale, begins ? Vec{} : load(to)));
          }
        }
      }
      w_scale[p] += scale_step;
      if (zeros) w_zero[p] += kPanelRows;
    }
    begins = false;
    if constexpr (Dot::kIntegers) ++x_sum;
    if (x_scale != nullptr) x_scale += x_scale_step;
  }
  if constexpr (kKeeps) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p) store(total[p] + r * kPanelRows, kept[r][p]);
    }
  }
}

template <class Dot, int kPanels>
void rows_of(const DotArgs& b, int first, int rows, int panel) {
  switch (rows) {
    case 1:
      return block_of<Dot, 1, kPanels>(b, first, panel);
    case 2:
      return block_of<Dot, 2, kPanels>(b, first, panel);
    case 3:
      return block_of<Dot, 3, kPanels>(b, first, panel);
    case 4:
      return block_of<Dot, 4, kPanels>(b, first, panel);
    default:
      break;
  }
  if constexpr (Dot::kMostRows >= 6)
    return rows == 5 ? block_of<Dot, 5, kPanels>(b, first, panel)
                     : block_of<Dot, 6, kPanels>(b, first, panel);
}

template <class Dot>
void multiply(const DotArgs& b) {
#if defined(MORACLE_VECTOR_AVX512)
  const auto panels = [&]<int kPanels>() {
    int row = 0;
    for (; row + 8 <= b.rows; row += 8) block_of<Dot, 8, kPanels>(b, row, 0);
    if (b.rows - row == 7) return block_of<Dot, 7, kPanels>(b, row, 0);
    if (row < b.rows) rows_of<Dot, kPanels>(b, row, b.rows - row, 0);
  };
  b.panels == 2 ? panels.template operator()<2>() : panels.template operator()<1>();
#else
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
      rows_of<Dot, 1>(b, first, last - first, panel);
    }
  }
#endif
}

}  // namespace
}  // namespace moracle::cpu
