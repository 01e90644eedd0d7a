// AMX: rows of int8 times codes with integer scales, for experts with many rows. Code times step
// has at most 16 bits: a signed byte times 256, and an unsigned byte. Tiles multiply rows by both
// bytes. Their sums over a super-block are exact, and become f32 once. Sums of groups of 16
// columns, each scaled by itself, took two thirds of the time with 32 rows
// (bench/lab/gguf_decode.md).
//
// Results have the bits of dot_steps_avx512_vnni.cc, which is faster for few rows.

#if defined(__x86_64__)

#include "kernels/cpu/ukernels/dot_steps.h"

namespace moracle::cpu {
namespace {

constexpr int kTileRowBlocks = 16, kTileCols = 4 * kTileRowBlocks;
constexpr int kTileBytes = kTileRowBlocks * kRowBlockBytes;
constexpr int kMaxTiles = kFactorCols / kTileCols;
constexpr int kHalfTokens = 16, kBlockTokens = 2 * kHalfTokens;
static_assert(kBlockTokens <= kMaxBlockRows);

/// Code times step of one panel and super-block, as 256 · high + low.
struct alignas(64) TwoBytes {
  std::byte high[kMaxTiles][kTileBytes], low[kMaxTiles][kTileBytes];
};

/// The sums of kBlockTokens tokens: those of limb l and half h at 2 · l + h.
struct alignas(64) TileSums {
  std::byte high[2 * kLimbs][kTileBytes], low[2 * kLimbs][kTileBytes];
};

/// A super-block of one panel. The panels of a super-block follow one another.
struct PanelBlock {
  int64_t super_block;
  int panel, groups, tiles;
};

PanelBlock panel_block(const StepDotArgs& b, int64_t i) {
  const int per_factor = static_cast<int>(kFactorCols) / b.group_cols;
  const int64_t s = b.panels == 2 ? i >> 1 : i, left = b.groups - s * per_factor;
  const int groups = left < per_factor ? static_cast<int>(left) : per_factor;
  return {s, static_cast<int>(i - s * b.panels), groups,
          (groups * b.group_cols + kTileCols - 1) / kTileCols};
}

/// Unpacks kTileCols columns: those of tile `tile` of the super-block. Columns behind the last
/// group have step 0.
template <class Codes, bool kSubtracts>
MORACLE_VECTOR_INLINE void unpack_tile(const StepDotArgs& b, const PanelBlock& at, int tile,
                                       TwoBytes& to) {
  constexpr int kUnits = kTileCols / Codes::kCols;
  constexpr int64_t kUnitBytes = Codes::kBlocks * kRowBlockBytes;
  const std::byte* unit = b.w[at.panel] + at.super_block * Codes::kSuperBlock;
  const std::byte* ahead = codes_ahead<Codes>(b, at.panel, at.super_block);
  unit += tile * kUnits * kUnitBytes;
  ahead += tile * kUnits * kUnitBytes;
  const int per_factor = static_cast<int>(kFactorCols) / b.group_cols;
  const int shift = __builtin_ctz(static_cast<unsigned>(b.group_cols));
  const int8_t* const steps =
      b.steps[at.panel].step + at.super_block * per_factor * int64_t{kPanelRows};
  const __m512i offset = _mm512_set1_epi16(static_cast<int16_t>(Codes::kOffset + b.zero));
  const Bits book = Codes::book_of(b);
  std::byte *high = to.high[tile], *low = to.low[tile];
  for (int u = 0; u < kUnits; ++u, unit += kUnitBytes, ahead += kUnitBytes) {
    const int group = (tile * kTileCols + u * Codes::kCols) >> shift;
    const __m128i bytes =
        group < at.groups ? load_as<__m128i>(steps + group * kPanelRows) : _mm_setzero_si128();
    // The step beside 0: the sum of two neighbouring products is then one product, of an even or of
    // an odd column.
    const __m512i low_words = _mm512_cvtepu8_epi32(bytes);
    const __m512i even = _mm512_or_si512(low_words, _mm512_slli_epi32(low_words, 16));
    const __m512i odd = _mm512_slli_epi16(even, 8);
    const __m512i less = _mm512_mullo_epi16(_mm512_srai_epi16(odd, 8), offset);
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < Codes::kBlocks; ++i) __builtin_prefetch(ahead + i * kRowBlockBytes, 0, 2);
    MORACLE_VECTOR_UNROLL
    for (int c = 0; c < Codes::kCols / 4; ++c) {
      const auto code = as<__m512i>(Codes::at(unit, c, book));
      __m512i a = _mm512_maddubs_epi16(code, even), z = _mm512_maddubs_epi16(code, odd);
      if constexpr (kSubtracts) {
        a = _mm512_sub_epi16(a, less);
        z = _mm512_sub_epi16(z, less);
      }
      // `a` holds the products of even columns, `z` those of odd ones.
      const __m512i swapped = _mm512_broadcast_i32x4(
          _mm_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
      constexpr __mmask64 kEven = 0x5555555555555555u;
      store(high, _mm512_mask_shuffle_epi8(z, kEven, a, swapped));
      store(low, _mm512_mask_shuffle_epi8(a, ~kEven, z, swapped));
      high += kRowBlockBytes;
      low += kRowBlockBytes;
    }
  }
}

/// Rows that two tiles of sums belong to.
struct TileRows {
  const std::byte* x;
  std::byte *high, *low;
};

/// The sums of one or two tiles of rows over a super-block. Calls between(t) after the products of
/// tile t, so that unpacking overlaps products.
template <bool kTwo, class Between>
MORACLE_VECTOR_INLINE void multiply_tiles(const TwoBytes& w, int tiles, int64_t stride,
                                          const TileRows& first, const TileRows& second,
                                          const Between& between) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int t = 0; t < tiles; ++t) {
    _tile_loadd(6, w.high[t], kRowBlockBytes);
    _tile_loadd(4, first.x + t * kTileCols, stride);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, w.low[t], kRowBlockBytes);
    _tile_dpbsud(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, second.x + t * kTileCols, stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    }
    between(t);
  }
  _tile_stored(0, first.high, kRowBlockBytes);
  _tile_stored(1, first.low, kRowBlockBytes);
  if constexpr (kTwo) {
    _tile_stored(2, second.high, kRowBlockBytes);
    _tile_stored(3, second.low, kRowBlockBytes);
  }
}

/// Adds the sums of a super-block to the results of kTokens tokens from `token` on, which begin at
/// row `row` of the sums. Adds in the order of multiply_half, so that bits are equal.
template <class Codes, int kTokens, int kLimbRows>
MORACLE_VECTOR_INLINE void add_tokens(const StepDotArgs& b, const PanelBlock& at,
                                      const TileSums& sums, int row, int64_t token) {
  const int64_t s = at.super_block;
  Ints sum[kTokens * kLimbRows];
  Vec total[kTokens], least[kTokens] = {};
  float* const to = b.sum[at.panel] + token * kPanelRows;
  MORACLE_VECTOR_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const int half = (row + t) / kHalfTokens, line = (row + t) % kHalfTokens;
    MORACLE_VECTOR_UNROLL
    for (int l = 0; l < kLimbRows; ++l) {
      const auto high = load_as<Ints>(sums.high[2 * l + half] + line * kRowBlockBytes);
      const auto low = load_as<Ints>(sums.low[2 * l + half] + line * kRowBlockBytes);
      sum[t * kLimbRows + l] = high * 256 + low;
    }
    total[t] = s == 0 ? Vec{} : load(to + t * kPanelRows);
  }
  const float* const x_scale =
      kLimbRows == 1 ? nullptr : b.x_scale + token * kLimbRows * b.x_scale_stride + s;
  const uint16_t* const factors = b.steps[at.panel].factor + s * kPanelRows;
  add_scaled<kTokens, kLimbRows>(sum, factors_at<Codes>(b, factors), x_scale, b.x_scale_stride,
                                 total);
  if (const PanelSteps& minimums = b.minimums[at.panel]; minimums.step != nullptr) {
    const int64_t first_group = s * (kFactorCols / b.group_cols);
    const float* const minimum_sum = b.minimum_sum + token * b.minimum_sum_stride + first_group;
    const int8_t* const minimum = minimums.step + first_group * kPanelRows;
    for (int g = 0; g < at.groups; ++g) {
      const Vec m = to_floats(widen_bytes(minimum + g * kPanelRows));
      MORACLE_VECTOR_UNROLL
      for (int t = 0; t < kTokens; ++t)
        least[t] = multiply_add(m, splat(minimum_sum[t * b.minimum_sum_stride + g]), least[t]);
    }
    const Vec factor = widen_halves(minimums.factor + s * kPanelRows);
    MORACLE_VECTOR_UNROLL
    for (int t = 0; t < kTokens; ++t) total[t] = multiply_add(-least[t], factor, total[t]);
  }
  MORACLE_VECTOR_UNROLL
  for (int t = 0; t < kTokens; ++t) store(to + t * kPanelRows, total[t]);
}

/// Multiplies `count` tokens from `token` on by a super-block of one panel.
template <class Codes, int kLimbRows, class Between>
MORACLE_VECTOR_INLINE void multiply_tokens(const StepDotArgs& b, const PanelBlock& at,
                                           const TwoBytes& w, TileSums& sums, int64_t token,
                                           int count, const Between& between) {
  const int halves = count > kHalfTokens ? 2 : 1, num = kLimbRows * halves;
  const auto rows_of = [&](int i) {
    const int limb = halves == 2 ? i / 2 : i, half = halves == 2 ? i % 2 : 0;
    const int64_t row = (token + half * kHalfTokens) * kLimbRows + limb;
    return TileRows{b.x + row * b.x_stride + at.super_block * kFactorCols,
                    sums.high[2 * limb + half], sums.low[2 * limb + half]};
  };
  const auto nothing = [](int) {};
  const int64_t stride = kLimbRows * b.x_stride;
  int i = 0;
  if (num == 1) {
    multiply_tiles<false>(w, at.tiles, stride, rows_of(0), {}, between);
    i = 1;
  } else {
    multiply_tiles<true>(w, at.tiles, stride, rows_of(0), rows_of(1), between);
    i = 2;
  }
  for (; i + 1 < num; i += 2)
    multiply_tiles<true>(w, at.tiles, stride, rows_of(i), rows_of(i + 1), nothing);
  if (i < num) multiply_tiles<false>(w, at.tiles, stride, rows_of(i), {}, nothing);
  // More tokens at a time hide the latency of the sums over minimums.
  int t = 0;
  if (kLimbRows == 1 && b.minimums[0].step != nullptr) {
    for (; t + 8 <= count; t += 8) add_tokens<Codes, 8, kLimbRows>(b, at, sums, t, token + t);
  }
  constexpr int kTokens = 4;
  for (; t + kTokens <= count; t += kTokens)
    add_tokens<Codes, kTokens, kLimbRows>(b, at, sums, t, token + t);
  for (; t < count; ++t) add_tokens<Codes, 1, kLimbRows>(b, at, sums, t, token + t);
}

/// While a super-block of a panel is multiplied, the next one is unpacked.
template <class Codes, bool kSubtracts, int kLimbRows>
void multiply_many(const StepDotArgs& b) {
  const int tile_rows = b.rows < kHalfTokens ? b.rows : kHalfTokens;
  configure_tiles(tile_rows, tile_rows, kTileRowBlocks);
  TwoBytes w[2];
  TileSums sums;
  const int64_t all = super_blocks(b) * b.panels;
  const auto unpack = [&](int64_t i, int tile) {
    const PanelBlock at = panel_block(b, i);
    if (tile >= at.tiles) return;
    if (tile == 0) {
      prefetch_scales<true>(b, b.steps[at.panel], at.panel, at.super_block);
      if (b.minimums[at.panel].step != nullptr)
        prefetch_scales<true>(b, b.minimums[at.panel], at.panel, at.super_block);
    }
    unpack_tile<Codes, kSubtracts>(b, at, tile, w[i % 2]);
  };
  for (int t = 0; t < kMaxTiles; ++t) unpack(0, t);
  for (int64_t i = 0; i < all; ++i) {
    const PanelBlock at = panel_block(b, i);
    for (int64_t token = 0; token < b.rows; token += kBlockTokens) {
      const int count =
          b.rows - token < kBlockTokens ? static_cast<int>(b.rows - token) : kBlockTokens;
      if (token == 0 && i + 1 < all) {
        multiply_tokens<Codes, kLimbRows>(b, at, w[i % 2], sums, 0, count,
                                          [&](int t) { unpack(i + 1, t); });
      } else {
        multiply_tokens<Codes, kLimbRows>(b, at, w[i % 2], sums, token, count, [](int) {});
      }
    }
  }
}

template <class Codes, bool kSubtracts>
void multiply_limbs(const StepDotArgs& b) {
  b.limbs == 1 ? multiply_many<Codes, kSubtracts, 1>(b)
               : multiply_many<Codes, kSubtracts, kLimbs>(b);
}

template <CodeSet set>
void multiply_many_rows(const StepDotArgs& b) {
  using Codes = StoredCodes<set>;
  if constexpr (Codes::kOffset + kStepZeroPoint <= 0) {
    if (Codes::kOffset + b.zero == 0) return multiply_limbs<Codes, false>(b);
  }
  multiply_limbs<Codes, true>(b);
}

}  // namespace

void dot_steps_i4_s8_r320_amx(const StepDotArgs& b) {
  multiply_many_rows<CodeSet::kAny>(b);
}
void dot_steps_u5_s8_r320_amx(const StepDotArgs& b) {
  multiply_many_rows<CodeSet::kUnsigned5>(b);
}
void dot_steps_i6_s8_r320_amx(const StepDotArgs& b) {
  multiply_many_rows<CodeSet::kSigned6>(b);
}
void dot_steps_iq4_s8_r320_amx(const StepDotArgs& b) {
  multiply_many_rows<CodeSet::kIq4>(b);
}

}  // namespace moracle::cpu

#endif
