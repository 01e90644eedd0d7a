// Rows of int8 times panels whose scales are integers or f16 (StepDotArgs), written once and
// included by the files built for one instruction set. A super-block is the kFactorCols columns
// that share the factors of integer scales, and the scales of limbs. Sums of products times steps
// are exact over a super-block. With f16 scales sums of products are exact over a group.
//
// Everything is in an anonymous namespace, for the reason given in simd/vector.h.
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/ukernels/args.h"
#include "quant/code_set.h"

namespace moracle::cpu {
namespace {

// A row block is one vector, or two halves.
constexpr int kHalves = kPanelRows / kLanes;
constexpr int kHalfBytes = kRowBlockBytes / kHalves;

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kByFours = true;
MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Bits codes, Bits x) {
#if defined(__AVX512VNNI__)
  return as<Ints>(_mm512_dpbusd_epi32(as<__m512i>(sum), as<__m512i>(codes), as<__m512i>(x)));
#else
  return as<Ints>(_mm256_dpbusd_avx_epi32(as<__m256i>(sum), as<__m256i>(codes), as<__m256i>(x)));
#endif
}
#else
constexpr bool kByFours = false;
#endif

/// The codes of row blocks of one kind. Products take unsigned bytes: the code plus kOffset.
template <CodeSet set>
struct StoredCodes {
  static constexpr bool kBook = has_code_book(set);
  static constexpr int kHigh = set == CodeSet::kAny ? 0 : code_bits(set) - 4;  // beside four bits
  static constexpr int kCols = kHigh == 1 ? 32 : 16;                           // of a unit
  static constexpr int kLowBlocks = kCols / 8, kBlocks = kLowBlocks + (kHigh > 0 ? 1 : 0);
  static constexpr int64_t kSuperBlock = kFactorCols / kCols * kBlocks * kRowBlockBytes;
  static constexpr int kOffset = set == CodeSet::kAny       ? 8
                                 : set == CodeSet::kSigned6 ? 32
                                 : !kBook                   ? 0
                                 : kByFours                 ? 128
                                                            : 0;
  /// Two products of bytes fit into 16 bits, and so do sums of kPairs of them with AVX2: 2 · 127
  /// times 15, 31 or 63 is at most 32,767 / kPairs. Codes in a code book stay signed there, and
  /// their signs go to the activations: 2 · 127 · 127.
  static constexpr bool kSigned = kBook && !kByFours;
  static constexpr int kPairs = kBook ? 1 : kHigh == 2 ? 2 : 4;

  /// What `at` looks codes up in.
  MORACLE_VECTOR_INLINE static Bits book_of(const StepDotArgs& b) {
    if constexpr (!kBook) return Bits{};
    const auto book = load_as<__m128i>(b.code_book);
#if defined(MORACLE_VECTOR_AVX512)
    return as<Bits>(_mm512_broadcast_i32x4(book));
#else
    return as<Bits>(_mm256_broadcastsi128_si256(book));
#endif
  }

  /// Columns 4c to 4c + 3 of a unit.
  MORACLE_VECTOR_INLINE static Bits at(const std::byte* unit, int c, Bits book) {
    constexpr uint32_t kBytes = 0x01010101u;
    const Bits both = load_as<Bits>(unit + c / 2 * kRowBlockBytes);
    Bits code = (c % 2 == 0 ? both : both >> 4) & splat_bits(15 * kBytes);
    if constexpr (set == CodeSet::kAny) code ^= splat_bits(8 * kBytes);
    if constexpr (kBook) code = value_of(code, book);
    if constexpr (kHigh > 0) {
      const Bits high = load_as<Bits>(unit + kLowBlocks * kRowBlockBytes);
      const int shift = c * kHigh - 4;
      code |= (shift < 0 ? high << (shift < 0 ? -shift : 0) : high >> (shift < 0 ? 0 : shift)) &
              splat_bits((16 * ((1u << kHigh) - 1)) * kBytes);
    }
    return code;
  }

 private:
  MORACLE_VECTOR_INLINE static Bits value_of(Bits numbers, Bits book) {
#if defined(MORACLE_VECTOR_AVX512)
    const auto value = as<Bits>(_mm512_shuffle_epi8(as<__m512i>(book), as<__m512i>(numbers)));
#else
    const auto value = as<Bits>(_mm256_shuffle_epi8(as<__m256i>(book), as<__m256i>(numbers)));
#endif
    return kByFours ? value ^ splat_bits(0x80808080u) : value;
  }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Codes of 8 bits, four columns of each row in a row block. With sums of 16 bits f32 products take
/// three quarters of the time.
struct Int8Codes {
  static constexpr int kCols = 16, kBlocks = 4;
  static constexpr int64_t kSuperBlock = kFactorCols / kCols * kBlocks * kRowBlockBytes;
  static constexpr bool kBook = false;
  static constexpr int kOffset = 128;
  MORACLE_VECTOR_INLINE static Bits book_of(const StepDotArgs&) { return Bits{}; }
  MORACLE_VECTOR_INLINE static Bits at(const std::byte* unit, int c, Bits) {
    return load_as<Bits>(unit + c * kRowBlockBytes) ^ splat_bits(0x80808080u);
  }
};
#endif

/// Codes beside integer scales, and beside f16 scales.
template <class Codes>
struct WithSteps : Codes {
  static constexpr bool kSteps = true;
};
template <class Codes>
struct WithHalves : Codes {
  static constexpr bool kSteps = false;
};

MORACLE_VECTOR_INLINE Ints widen_bytes(const int8_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Ints>(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#else
  return as<Ints>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}
MORACLE_VECTOR_INLINE Vec widen_halves(const uint16_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Vec>(_mm512_cvtph_ps(load_as<__m256i>(p)));
#else
  return as<Vec>(_mm256_cvtph_ps(load_as<__m128i>(p)));
#endif
}
MORACLE_VECTOR_INLINE Vec to_floats(Ints v) {
  return __builtin_convertvector(v, Vec);
}

/// The factors, or f16 scales, of 16 rows or half of them.
template <class Codes>
MORACLE_VECTOR_INLINE Vec factors_at(const StepDotArgs& b, const uint16_t* p) {
  const Vec factors = widen_halves(p);
  return Codes::kBook ? factors * splat(b.factor_unit) : factors;
}

/// How far codes and steps are prefetched: 4 to 6 KiB of codes of a panel.
constexpr int64_t kSuperBlocksAhead = 2;

MORACLE_VECTOR_INLINE int64_t super_blocks(const StepDotArgs& b) {
  const int64_t per_factor = kFactorCols / b.group_cols;
  return (b.groups + per_factor - 1) / per_factor;
}

/// The codes to prefetch during a super-block.
template <class Codes>
MORACLE_VECTOR_INLINE const std::byte* codes_ahead(const StepDotArgs& b, int panel,
                                                   int64_t super_block) {
  const int64_t all = super_blocks(b), later = super_block + kSuperBlocksAhead;
  if (later < all) return b.w[panel] + later * Codes::kSuperBlock;
  return b.w[panel] + b.codes_jump[panel] + (later - all) * Codes::kSuperBlock;
}

/// A super-block of successive panels, and its first row of several.
struct StepPosition {
  int64_t super_block;
  int panel, row, groups;
  bool prefetches;
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
/// Sums of a group in 32 bits, times the step, if there is one, at its end.
template <class Codes, int kRows>
struct Products {
  static constexpr int kQuads = Codes::kCols / 4;  ///< column quads between calls of flush()
  Ints of[kRows], steps;
  MORACLE_VECTOR_INLINE void begin(const Ints (&from)[kRows], const int8_t* step, int,
                                   Ints (&)[kRows]) {
    if constexpr (Codes::kSteps) steps = widen_bytes(step);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) of[r] = from[r];
  }
  MORACLE_VECTOR_INLINE void add(Bits code, Bits x, int r, int) {
    of[r] = add_products(of[r], code, x);
  }
  MORACLE_VECTOR_INLINE void flush(Ints (&)[kRows]) {}
  MORACLE_VECTOR_INLINE void end(Ints (&sum)[kRows]) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      if constexpr (Codes::kSteps)
        sum[r] += of[r] * steps;
      else
        sum[r] = of[r];
    }
  }
};
#else
/// Sums of a few products in 16 bits, which the addition of neighbours multiplies by the step, or
/// by 1.
template <class Codes, int kRows>
struct Products {
  static constexpr int kQuads = Codes::kPairs;  ///< column quads between calls of flush()
  __m256i pairs[kRows], words;
  MORACLE_VECTOR_INLINE void begin(const Ints (&from)[kRows], const int8_t* step, int offset,
                                   Ints (&sum)[kRows]) {
    if constexpr (!Codes::kSteps) {
      words = _mm256_set1_epi16(1);
      MORACLE_VECTOR_UNROLL
      for (int r = 0; r < kRows; ++r) sum[r] = from[r];
      return;
    }
    const __m128i steps = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(step));
    words = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(steps, steps));
    if (offset == 0) return;
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] += from[r] * widen_bytes(step);
  }
  MORACLE_VECTOR_INLINE void add(Bits code, Bits x, int r, int i) {
    const auto w = as<__m256i>(code), bytes = as<__m256i>(x);
    const __m256i two = Codes::kSigned
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(bytes, w))
                            : _mm256_maddubs_epi16(w, bytes);
    pairs[r] = i == 0 ? two : _mm256_add_epi16(pairs[r], two);
  }
  MORACLE_VECTOR_INLINE void flush(Ints (&sum)[kRows]) {
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) sum[r] += as<Ints>(_mm256_madd_epi16(pairs[r], words));
  }
  MORACLE_VECTOR_INLINE void end(Ints (&)[kRows]) {}
};
#endif

/// One group of kPanels panels and kRows rows.
template <class Codes, int kPanels, int kRows>
struct Group {
  const std::byte* w[kPanels];
  const std::byte* ahead[kPanels];  // of the codes to prefetch
  const int8_t* step[kPanels];
  const std::byte* x;
  const int32_t* x_sum;
  int64_t x_stride, x_sum_stride;
  int units, offset;
  Bits book;

  /// sum[p][r] += step · Σ code · x, or without steps = Σ code · x. The units of this group are
  /// then behind w, ahead and x.
  template <bool kPrefetches>
  MORACLE_VECTOR_INLINE void add_to(Ints (&sum)[kPanels][kRows]) {
    using Product = Products<Codes, kRows>;
    Product products[kPanels];
    Ints begin[kRows];
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r)
      begin[r] = as<Ints>(
          splat_bits(offset == 0 ? 0u : static_cast<uint32_t>(-offset * x_sum[r * x_sum_stride])));
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) products[p].begin(begin, step[p], offset, sum[p]);
    for (int u = 0; u < units; ++u) {
      if constexpr (kPrefetches) {
        MORACLE_VECTOR_UNROLL
        for (int p = 0; p < kPanels; ++p) {
          MORACLE_VECTOR_UNROLL
          for (int i = 0; i < Codes::kBlocks; ++i)
            __builtin_prefetch(ahead[p] + i * kRowBlockBytes, 0, 2);
          ahead[p] += Codes::kBlocks * kRowBlockBytes;
        }
      }
      MORACLE_VECTOR_UNROLL
      for (int c = 0; c < Codes::kCols / 4; c += Product::kQuads) {
        MORACLE_VECTOR_UNROLL
        for (int i = 0; i < Product::kQuads; ++i) {
          Bits code[kPanels];
          MORACLE_VECTOR_UNROLL
          for (int p = 0; p < kPanels; ++p) code[p] = Codes::at(w[p], c + i, book);
          MORACLE_VECTOR_UNROLL
          for (int r = 0; r < kRows; ++r) {
            const Bits bytes = splat_bits(load_as<uint32_t>(x + r * x_stride + (c + i) * 4));
            MORACLE_VECTOR_UNROLL
            for (int p = 0; p < kPanels; ++p) products[p].add(code[p], bytes, r, i);
          }
        }
        MORACLE_VECTOR_UNROLL
        for (int p = 0; p < kPanels; ++p) products[p].flush(sum[p]);
      }
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p) w[p] += Codes::kBlocks * kRowBlockBytes;
      x += Codes::kCols;
    }
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      products[p].end(sum[p]);
      if constexpr (Codes::kSteps) step[p] += kPanelRows;
    }
    ++x_sum;
  }
};

/// total[t] += factor · Σ_l x_scale · sum: the scales of a token's limbs at `x_scale`, `stride`
/// apart.
template <int kTokens, int kLimbRows>
MORACLE_VECTOR_INLINE void add_scaled(const Ints (&sum)[kTokens * kLimbRows], Vec factor,
                                      const float* x_scale, int64_t stride, Vec (&total)[kTokens]) {
  MORACLE_VECTOR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    // The smallest limb comes first.
    Vec partial = to_floats(sum[t * kLimbRows + kLimbRows - 1]);
    if constexpr (kLimbRows > 1) {
      const float* const scale = x_scale + t * kLimbRows * stride;
      partial = partial * splat(scale[(kLimbRows - 1) * stride]);
      MORACLE_VECTOR_UNROLL
      for (int l = kLimbRows - 2; l >= 0; --l)
        partial =
            multiply_add(to_floats(sum[t * kLimbRows + l]), splat(scale[l * stride]), partial);
    }
    total[t] = multiply_add(partial, factor, total[t]);
  }
}

/// kTokens rows of kLimbRows limbs times kPanels panels, or half of one, over one super-block.
template <class Codes, int kPanels, int kTokens, int kLimbRows, bool kPrefetches>
MORACLE_VECTOR_INLINE void multiply_half(const StepDotArgs& b, const StepPosition& at, int half) {
  constexpr int kRows = kTokens * kLimbRows;
  const int64_t first_group = at.super_block * (kFactorCols / b.group_cols);
  const int64_t code_at = at.super_block * Codes::kSuperBlock + half * kHalfBytes;
  const int64_t lane = first_group * kPanelRows + half * kLanes;
  const int64_t factor_at = at.super_block * kPanelRows + half * kLanes;
  const int64_t x_row = int64_t{at.row} * kLimbRows;
  const bool has_minimums = Codes::kSteps && b.minimums[0].step != nullptr;
  Group<Codes, kPanels, kRows> group;
  const int8_t* minimum[kPanels];
  const uint16_t* factor[kPanels];
  float* to[kPanels];
  MORACLE_VECTOR_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    group.w[p] = b.w[at.panel + p] + code_at;
    const PanelSteps& scales = b.steps[at.panel + p];
    if constexpr (Codes::kSteps) group.step[p] = scales.step + lane;
    factor[p] = scales.factor + (Codes::kSteps ? factor_at : lane);
    to[p] = b.sum[at.panel + p] + at.row * kPanelRows + half * kLanes;
    minimum[p] = has_minimums ? b.minimums[at.panel + p].step + lane : nullptr;
    if constexpr (kPrefetches) group.ahead[p] = codes_ahead<Codes>(b, at.panel + p, at.super_block);
  }
  group.x = b.x + x_row * b.x_stride + at.super_block * kFactorCols;
  group.x_stride = b.x_stride;
  group.x_sum = b.x_sum + x_row * b.x_sum_stride + first_group;
  group.x_sum_stride = b.x_sum_stride;
  group.units = static_cast<int>(static_cast<unsigned>(b.group_cols) / Codes::kCols);
  group.offset = Codes::kOffset + b.zero;
  group.book = Codes::book_of(b);
  const float* minimum_sum = b.minimum_sum + at.row * b.minimum_sum_stride + first_group;
  const float* const x_scale =
      kLimbRows == 1 ? nullptr : b.x_scale + x_row * b.x_scale_stride + at.super_block;
  Ints sum[kPanels][kRows] = {};
  Vec least[kPanels][kTokens] = {}, total[kPanels][kTokens];
  const auto load_totals = [&] {
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      MORACLE_VECTOR_UNROLL
      for (int t = 0; t < kTokens; ++t)
        total[p][t] = at.super_block == 0 ? Vec{} : load(to[p] + t * kPanelRows);
    }
  };
  if constexpr (!Codes::kSteps) load_totals();
  for (int g = 0; g < at.groups; ++g) {
    group.template add_to<kPrefetches>(sum);
    if constexpr (!Codes::kSteps) {
      MORACLE_VECTOR_UNROLL
      for (int p = 0; p < kPanels; ++p) {
        add_scaled<kTokens, kLimbRows>(sum[p], factors_at<Codes>(b, factor[p]), x_scale,
                                       b.x_scale_stride, total[p]);
        factor[p] += kPanelRows;
      }
    }
    if (!has_minimums) continue;
    MORACLE_VECTOR_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const Vec m = to_floats(widen_bytes(minimum[p]));
      MORACLE_VECTOR_UNROLL
      for (int t = 0; t < kTokens; ++t)
        least[p][t] = multiply_add(m, splat(minimum_sum[t * b.minimum_sum_stride]), least[p][t]);
      minimum[p] += kPanelRows;
    }
    ++minimum_sum;
  }
  if constexpr (Codes::kSteps) load_totals();
  MORACLE_VECTOR_UNROLL
  for (int p = 0; p < kPanels; ++p) {
    if constexpr (Codes::kSteps)
      add_scaled<kTokens, kLimbRows>(sum[p], factors_at<Codes>(b, factor[p]), x_scale,
                                     b.x_scale_stride, total[p]);
    const Vec least_factor =
        has_minimums ? widen_halves(b.minimums[at.panel + p].factor + factor_at) : Vec{};
    MORACLE_VECTOR_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      if (has_minimums) total[p][t] = multiply_add(-least[p][t], least_factor, total[p][t]);
      store(to[p] + t * kPanelRows, total[p][t]);
    }
  }
}

using MultiplyBlock = void(const StepDotArgs&, const StepPosition&);

template <class Codes, int kPanels, int kTokens, int kLimbRows>
void multiply_block(const StepDotArgs& b, const StepPosition& at) {
  if (at.prefetches)
    multiply_half<Codes, kPanels, kTokens, kLimbRows, true>(b, at, 0);
  else
    multiply_half<Codes, kPanels, kTokens, kLimbRows, false>(b, at, 0);
  for (int half = 1; half < kHalves; ++half)
    multiply_half<Codes, kPanels, kTokens, kLimbRows, false>(b, at, half);
}

/// Prefetches the scales of a later super-block.
template <bool kSteps>
MORACLE_VECTOR_INLINE void prefetch_scales(const StepDotArgs& b, const PanelSteps& scales,
                                           int panel, int64_t super_block) {
  const int64_t all = super_blocks(b), later = super_block + kSuperBlocksAhead;
  const int64_t jump = later < all ? 0 : b.steps_jump[panel], s = later < all ? later : later - all;
  const int64_t lanes = kFactorCols / b.group_cols * kPanelRows;
  const auto prefetch = [jump](const auto* from, int64_t count) {
    const auto* const line = reinterpret_cast<const std::byte*>(from) + jump;
    const int64_t bytes = count * static_cast<int64_t>(sizeof *from);
    for (int64_t i = 0; i < bytes; i += kRowBlockBytes) __builtin_prefetch(line + i, 0, 2);
  };
  if constexpr (kSteps) prefetch(scales.step + s * lanes, lanes);
  const int64_t factors = kSteps ? int64_t{kPanelRows} : lanes;
  prefetch(scales.factor + s * factors, factors);
}

/// Two panels share the activations' registers, as far as there are enough for both: memory then
/// has two streams to fetch from, too.
template <class Codes, int kLimbRows>
MORACLE_VECTOR_INLINE void multiply_rows(const StepDotArgs& b) {
  constexpr int kMost = kLimbRows == 1 ? 4 : 2;
  constexpr int kPairRows = kHalves == 1 && kLimbRows == 1 ? kMost : 1;
  constexpr MultiplyBlock* kOne[] = {
      multiply_block<Codes, 1, 1, kLimbRows>, multiply_block<Codes, 1, 2, kLimbRows>,
      multiply_block<Codes, 1, kMost - 1, kLimbRows>, multiply_block<Codes, 1, kMost, kLimbRows>};
  constexpr MultiplyBlock* kBoth[] = {
      multiply_block<Codes, 2, 1, kLimbRows>,
      multiply_block < Codes,
      2,
      kPairRows < 2 ? 1 : 2,
      kLimbRows >,
      multiply_block < Codes,
      2,
      kPairRows < 3 ? 1 : 3,
      kLimbRows >
      , multiply_block < Codes, 2, kPairRows < 4 ? 1 : 4, kLimbRows > };
  const int64_t all = super_blocks(b);
  const auto per_factor = static_cast<int>(kFactorCols / b.group_cols);
  for (int64_t s = 0; s < all; ++s) {
    for (int p = 0; p < b.panels; ++p) {
      prefetch_scales<Codes::kSteps>(b, b.steps[p], p, s);
      if (b.minimums[p].step != nullptr) prefetch_scales<true>(b, b.minimums[p], p, s);
    }
    const int64_t left = b.groups - s * per_factor;
    StepPosition at{s, 0, 0, left < per_factor ? static_cast<int>(left) : per_factor, true};
    for (; at.row < b.rows; at.row += kMost, at.prefetches = false) {
      const int rows = b.rows - at.row < kMost ? b.rows - at.row : kMost;
      at.panel = 0;
      if (b.panels == 2 && rows <= kPairRows) {
        kBoth[rows - 1](b, at);
        continue;
      }
      for (; at.panel < b.panels; ++at.panel) kOne[rows - 1](b, at);
    }
  }
}

template <class Codes>
void multiply_steps(const StepDotArgs& b) {
  if (b.limbs == 1)
    multiply_rows<Codes, 1>(b);
  else
    multiply_rows<Codes, kLimbs>(b);
}

}  // namespace
}  // namespace moracle::cpu
