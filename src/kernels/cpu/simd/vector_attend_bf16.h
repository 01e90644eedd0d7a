// Attention of several tokens over one KV block, with bf16 products: vdpbf16ps adds the products of
// two pairs to each of 16 sums. Keys and values are packed once per block of rows: a vector holds a
// pair of columns of 16 keys, or 16 columns of two values, and is multiplied by a broadcast pair of
// one row. The mainloop needs no shuffle.
#pragma once

#include "kernels/cpu/simd/vector_activate.h"
#include "kernels/cpu/simd/vector_attend.h"

namespace moracle::cpu {
namespace {

/// MR of the micro-kernel: with four vectors of columns, 16 independent sums.
constexpr int kTile = 4;
/// NR: keys, or columns of values, of a packed panel. What a micro-kernel reads of a panel stays in
/// L1 for all rows.
constexpr int64_t kPanel = kPackedPanel;

/// 32 elements of a row as bf16, rounded to nearest.
template <class Element>
MORACLE_VECTOR_INLINE __m512i bf16_pairs(const Element* p) {
  return as<__m512i>(_mm512_cvtne2ps_pbh(load(p + kLanes), load(p)));
}
MORACLE_VECTOR_INLINE __m512i bf16_pairs(const BF16* p) {
  return _mm512_loadu_si512(p);
}

/// Transposes 16 rows of 16 dwords: register r of the result holds column r.
MORACLE_VECTOR_INLINE void transpose(__m512i (&v)[16]) {
  __m512i t[16];
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // v[4 q + c] holds column 4 l + c of rows 4 q to 4 q + 3 in 128-bit lane l.
  MORACLE_VECTOR_UNROLL
  for (int c = 0; c < 4; ++c) {
    const __m512i a = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
    const __m512i e = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(a, d, 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
    t[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
  }
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < 16; ++i) v[i] = t[i];
}

/// Packs keys [first, last) in whole vectors; keys past the end are 0.
template <class Element>
void pack_keys(const AttendArgs& args, int64_t first, int64_t last) {
  const Element* const keys = static_cast<const Element*>(args.keys) + args.from * args.key_stride;
  for (int64_t at = first / kLanes * kLanes; at < last; at += kLanes) {
    for (int64_t d = 0; d < args.head_dim; d += 2 * kLanes) {
      __m512i v[16];
      MORACLE_VECTOR_UNROLL
      for (int i = 0; i < 16; ++i)
        v[i] = at + i < last ? bf16_pairs(keys + (at + i) * args.key_stride + d)
                             : _mm512_setzero_si512();
      transpose(v);
      uint32_t* const to = args.packed_keys + at / kPanel * kPanel * args.head_dim / 2 +
                           d / 2 * kPanel + at % kPanel;
      MORACLE_VECTOR_UNROLL
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kPanel, v[i]);
    }
  }
}

/// Packs values [first, last) in whole pairs; a value past the end is 0. False: one is not finite.
template <class Element>
bool pack_values(const AttendArgs& args, int64_t first, int64_t last) {
  const Element* const values =
      static_cast<const Element*>(args.values) + args.from * args.value_stride;
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 infinite = 0;
  // Interleaves the words of two values.
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  for (int64_t at = first / 2 * 2; at < last; at += 2) {
    const Element* const low = values + at * args.value_stride;
    const bool both = at + 1 < last;
    uint32_t* const to = args.packed_values + at / 2 * kPanel;
    for (int64_t c = 0; c < args.value_dim; c += kLanes) {
      const Vec second = both ? load(low + args.value_stride + c) : Vec{};
      const __m512i words = as<__m512i>(_mm512_cvtne2ps_pbh(second, load(low + c)));
      infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(words, exponent), exponent);
      _mm512_store_si512(to + c / kPanel * kPanel * kKvBlock / 2 + c % kPanel,
                         _mm512_permutexvar_epi16(interleave, words));
    }
  }
  return infinite == 0;
}

inline void pack_queries(const AttendArgs& args) {
  const int64_t pairs = args.head_dim / 2;
  uint32_t* to = args.packed_values + kKvBlock / 2 * packed_columns(args.value_dim);
  for (int r = 0; r < args.num_rows; ++r, to += pairs) {
    for (int64_t d = 0; d < pairs; d += kLanes)
      _mm512_storeu_si512(to + d, bf16_pairs(args.rows[r].query + 2 * d));
  }
}

template <class Element>
bool pack_as(const AttendArgs& args) {
  const Range all = visible_to_any(args);
  if (all.begin >= all.end) return true;
  pack_keys<Element>(args, all.begin, all.end);
  return pack_values<Element>(args, all.begin, all.end);
}

/// Micro-kernel: c[r][0, kWide · kLanes) (+)= Σ_i pair i of row r · row i of the panel b.
template <int kWide>
MORACLE_VECTOR_INLINE void pairs_tile(const uint32_t* const* a, int64_t pairs, const uint32_t* b,
                                      float* const* c, bool accumulate) {
  __m512 sum[kTile][kWide];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kTile; ++r) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v)
      sum[r][v] = accumulate ? _mm512_loadu_ps(c[r] + v * kLanes) : _mm512_setzero_ps();
  }
  const uint32_t* x[kTile];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kTile; ++r) x[r] = a[r];
  for (int64_t i = 0; i < pairs; ++i, b += kPanel) {
    __m512bh row[kWide];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) row[v] = as<__m512bh>(_mm512_load_si512(b + v * kLanes));
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kTile; ++r) {
      const auto pair = as<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[r][i])));
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kWide; ++v) sum[r][v] = _mm512_dpbf16_ps(sum[r][v], pair, row[v]);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kTile; ++r) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) _mm512_storeu_ps(c[r] + v * kLanes, sum[r][v]);
  }
}

/// The first `cols` columns of a panel, rounded up to whole vectors.
MORACLE_VECTOR_INLINE void pairs_panel(const uint32_t* const* a, int64_t pairs, const uint32_t* b,
                                       int64_t cols, float* const* c, bool accumulate) {
  if (cols <= kLanes) return pairs_tile<1>(a, pairs, b, c, accumulate);
  if (cols <= 2 * kLanes) return pairs_tile<2>(a, pairs, b, c, accumulate);
  if (cols <= 3 * kLanes) return pairs_tile<3>(a, pairs, b, c, accumulate);
  pairs_tile<4>(a, pairs, b, c, accumulate);
}

/// e^(factor · (x - most)) for x at most `most`, to bf16's accuracy: 2^f by a polynomial whose
/// relative error is below 7.5e-5, where bf16 rounds by up to 2^-9.
MORACLE_VECTOR_INLINE Vec weight_of(Vec x, Vec factor, Vec shift) {
  const Vec power = multiply_add(x, factor, shift);
  const Vec f = as<Vec>(_mm512_reduce_ps(power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  const float terms[] = {0.99992807f, 0.69326099f, 0.24261112f, 0.05517167f};
  return _mm512_scalef_ps(polynomial(terms, f), power - f);
}

/// As softmax, but the weights [from, to) are rounded to bf16 and stored as such at the start of
/// `scores`, with zeros in the vectors beside them. The sum is that of the rounded weights.
MORACLE_VECTOR_INLINE SoftmaxState softmax_bf16(float* scores, int64_t from, int64_t to,
                                                float factor) {
  const int64_t begin = from / kLanes * kLanes, end = (to + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = begin; i < from; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = to; i < end; ++i) scores[i] = -__builtin_inff();
  Vec top = splat(-__builtin_inff());
  for (int64_t i = begin; i < end; i += kLanes) top = _mm512_max_ps(top, load(scores + i));
  const float largest = _mm512_reduce_max_ps(top) * factor;
  const float log2_e = 1.44269504f;
  const Vec by = splat(factor * log2_e), shift = splat(-largest * log2_e);
  Vec sum{};
  auto* const weights = reinterpret_cast<char*>(scores);
  for (int64_t i = begin; i < end; i += kLanes) {
    const auto rounded = as<__m256i>(_mm512_cvtneps_pbh(weight_of(load(scores + i), by, shift)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + 2 * i), rounded);
    sum += widen_bf16(as<Shorts>(rounded));
  }
  return {largest, _mm512_reduce_add_ps(sum)};
}

/// Up to kTile rows that share the loads of panels.
struct PackedTile {
  const uint32_t* queries[kTile];
  float* scores[kTile];
  float* out[kTile];
  Range range;  ///< positions that any of the rows sees
};

/// k-block of the values in positions: that much of a panel stays in L1.
constexpr int64_t kValueBlock = 128;

// Rows [first, first + rows) of args, at most kAttendRows.
inline void attend_bf16_rows(const AttendArgs& args, int first, int rows) {
  float* const scores = args.scratch;
  const uint32_t* const queries =
      args.packed_values + kKvBlock / 2 * packed_columns(args.value_dim);
  const int64_t pairs = args.head_dim / 2;
  PackedTile tiles[kAttendRows / kTile];
  const int num_tiles = (rows + kTile - 1) / kTile;
  Range all{kKvBlock, 0};
  for (int t = 0; t < num_tiles; ++t) {
    PackedTile& tile = tiles[t];
    tile.range = {kKvBlock, 0};
    for (int i = 0; i < kTile; ++i) {
      // A short tile repeats its last row.
      const int r = static_cast<int>(least(t * kTile + i, rows - 1));
      const Range one = visible(args, first + r);
      if (one.begin < one.end)
        tile.range = {least(tile.range.begin, one.begin), most(tile.range.end, one.end)};
      tile.queries[i] = queries + (first + r) * pairs;
      tile.scores[i] = scores + r * kKvBlock;
      tile.out[i] = args.rows[first + r].out;
    }
    all = {least(all.begin, tile.range.begin), most(all.end, tile.range.end)};
  }
  for (int64_t at = all.begin / kPanel * kPanel; at < all.end; at += kPanel) {
    const uint32_t* const keys = args.packed_keys + at * pairs;
    for (int t = 0; t < num_tiles; ++t) {
      const PackedTile& tile = tiles[t];
      if (tile.range.end <= at || tile.range.begin >= at + kPanel) continue;
      float* to[kTile];
      for (int i = 0; i < kTile; ++i) to[i] = tile.scores[i] + at;
      pairs_panel(tile.queries, pairs, keys, least(tile.range.end - at, kPanel), to, false);
    }
  }
  for (int r = 0; r < rows; ++r) {
    AttendRow& row = args.rows[first + r];
    const Range one = visible(args, first + r), &tile = tiles[r / kTile].range;
    float* const own = scores + r * kKvBlock;
    row.largest = -__builtin_inff(), row.sum = 0;
    Range written{tile.begin, tile.begin};
    if (one.begin < one.end) {
      const SoftmaxState found = softmax_bf16(own, one.begin, one.end, args.scale);
      row.largest = found.largest, row.sum = found.sum;
      written = {one.begin / kLanes * kLanes, (one.end + kLanes - 1) / kLanes * kLanes};
    }
    // Positions that only other rows of the tile see.
    auto* const weights = reinterpret_cast<uint32_t*>(own);
    for (int64_t p = tile.begin / 2; p < written.begin / 2; ++p) weights[p] = 0;
    for (int64_t p = written.end / 2; p < (tile.end + 1) / 2; ++p) weights[p] = 0;
  }
  for (int r = 0; r < rows; ++r) {
    const Range& tile = tiles[r / kTile].range;
    if (tile.begin < tile.end) continue;
    for (int64_t c = 0; c < args.value_dim; ++c) args.rows[first + r].out[c] = 0;
  }
  for (int64_t c = 0; c < args.value_dim; c += kPanel) {
    for (int64_t at = 0; at < all.end; at += kValueBlock) {
      const uint32_t* const values = args.packed_values + c * kKvBlock / 2;
      for (int t = 0; t < num_tiles; ++t) {
        const PackedTile& tile = tiles[t];
        const int64_t begin = most(tile.range.begin / 2, at / 2),
                      end = least((tile.range.end + 1) / 2, (at + kValueBlock) / 2);
        if (begin >= end) continue;
        const uint32_t* weights[kTile];
        float* to[kTile];
        for (int i = 0; i < kTile; ++i) {
          weights[i] = reinterpret_cast<const uint32_t*>(tile.scores[i]) + begin;
          to[i] = tile.out[i] + c;
        }
        pairs_panel(weights, end - begin, values + begin * kPanel,
                    least(args.value_dim - c, kPanel), to, begin > tile.range.begin / 2);
      }
    }
  }
}

void attend_bf16(const AttendArgs& args) {
  for (int r = 0; r < args.num_rows; r += kAttendRows)
    attend_bf16_rows(args, r, static_cast<int>(least(kAttendRows, args.num_rows - r)));
}

bool pack_bf16(const AttendArgs& args) {
  if (args.new_queries) pack_queries(args);
  switch (args.cache) {
    case CacheType::kF32:
      return pack_as<float>(args);
    case CacheType::kBF16:
      return pack_as<BF16>(args);
    case CacheType::kF16:
      return pack_as<F16>(args);
    case CacheType::kE4M3:
      return pack_as<E4M3>(args);
  }
  return false;
}

}  // namespace
}  // namespace moracle::cpu
