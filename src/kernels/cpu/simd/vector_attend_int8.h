// Attention of query rows over one KV block of int8 keys and values. Queries and weights are
// quantized to 16 bits, so that both products are exact sums of integers:
//
//   score_j = (Σ_d q16_d · k8_jd) · q_scale · k_scale_j · scale     q16 = round(q / q_scale)
//   w_j     = exp(score_j - largest score) · v_scale_j              w16 = round(w / w_scale)
//   out_c   = (Σ_j w16_j · v8_jc) · w_scale
//
// w_scale = largest w / 32767. q_scale = largest |q| / 32767 for up to 516 columns, and less for
// more, so that no sum exceeds 31 bits. Integer sums have the same bits on every instruction set,
// in any order. Codes that were never written are multiplied by weights of 0.
#pragma once

#include "kernels/cpu/simd/vector_attend.h"
#include "kernels/cpu/simd/vector_quantize.h"

namespace moracle::cpu {
namespace {

constexpr float kMostWeight = 32767.0f;
/// x + kToInteger holds round(x), ties to even, in its low bits.
constexpr float kToInteger = 12582912.0f;  // 1.5 · 2^23
constexpr int kCodeVectors = 2;            // vectors of positions or columns in a micro-kernel
constexpr int kCodeRows = kLanes == 16 ? 8 : 4;

MORACLE_VECTOR_INLINE Ints splat_pair(int32_t pair) {
  return pair + Ints{};
}
/// 2 · kLanes codes of 8 bits as 16 bits, two in each lane.
MORACLE_VECTOR_INLINE Ints load_codes(const int8_t* p) {
#if defined(MORACLE_VECTOR_AVX512)
  return as<Ints>(_mm512_cvtepi8_epi16(load_as<__m256i>(p)));
#elif defined(MORACLE_VECTOR_AVX2)
  return as<Ints>(_mm256_cvtepi8_epi16(load_as<__m128i>(p)));
#elif defined(__SSE2__)
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return as<Ints>(_mm_srai_epi16(_mm_unpacklo_epi8(codes, codes), 8));
#else
  using Codes = int8_t __attribute__((vector_size(2 * kLanes)));
  using Wide = int16_t __attribute__((vector_size(4 * kLanes)));
  return as<Ints>(__builtin_convertvector(load_as<Codes>(p), Wide));
#endif
}
/// sum + the products of both 16-bit halves of each lane.
MORACLE_VECTOR_INLINE Ints add_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  return as<Ints>(_mm512_dpwssd_epi32(as<__m512i>(sum), as<__m512i>(a), as<__m512i>(b)));
#elif defined(MORACLE_VECTOR_AVX512)
  return sum + as<Ints>(_mm512_madd_epi16(as<__m512i>(a), as<__m512i>(b)));
#elif defined(__AVXVNNI__)
  return as<Ints>(_mm256_dpwssd_avx_epi32(as<__m256i>(sum), as<__m256i>(a), as<__m256i>(b)));
#elif defined(MORACLE_VECTOR_AVX2)
  return sum + as<Ints>(_mm256_madd_epi16(as<__m256i>(a), as<__m256i>(b)));
#elif defined(__SSE2__)
  return sum + as<Ints>(_mm_madd_epi16(as<__m128i>(a), as<__m128i>(b)));
#else
  return sum + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/// codes = round(x · factor), 16 bits. `count` is a multiple of 16. `codes` may alias x: each block
/// is loaded before its half of the memory is written.
MORACLE_VECTOR_INLINE void to_codes16(const float* x, int64_t count, float factor,
                                      uint16_t* codes) {
  for (int64_t i = 0; i < count; i += kBlock) {
    const FloatBlock from = load_block(x + i);
    Block to;
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVecs; ++v) to.v[v] = as<Bits>(from.v[v] * factor + kToInteger);
    store_block(codes + i, to);
  }
}

/// Quantizes a query, padded with zeros, and returns its scale: NaN if a number is NaN or infinite.
MORACLE_VECTOR_INLINE float query_codes(const float* query, int64_t dim, int64_t padded,
                                        uint16_t* codes) {
  const uint32_t largest = largest_bits(query, dim);
  const int64_t fits = 2147483647 / (127 * padded);
  const float most = fits < 32767 ? static_cast<float>(fits) : kMostWeight;
  const bool finite = largest < kInfinity;
  const float scale = finite ? float_scale(from_bits(largest), most) : from_bits(0x7fc00000u);
  const float factor = finite ? 1.0f / scale : 0.0f;
  const int64_t whole = dim / kBlock * kBlock;
  to_codes16(query, whole, factor, codes);
  if (whole < padded) {
    float last[kBlock] = {};
    for (int64_t d = whole; d < dim && finite; ++d) last[d - whole] = query[d];
    to_codes16(last, kBlock, factor, codes + whole);
  }
  return scale;
}

/// Micro-kernel of scores, without the scale of the query. Prefetches a cache line of keys and one
/// of values per step, unless `values_ahead` is null.
template <int kRows>
MORACLE_VECTOR_INLINE void score_codes(const uint16_t* queries, int64_t padded, const int8_t* keys,
                                       const float* scales, int64_t at, float* scores,
                                       const int8_t* values_ahead) {
  // The tile's bytes, kCodeVectors · kLanes · padded, over its steps.
  constexpr int64_t kStep = 2 * kCodeVectors * kLanes;
  const int8_t* from[kCodeVectors];
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kCodeVectors; ++v) {
    const int64_t position = at + v * kLanes;
    from[v] = keys + position / kBlock * kBlock * padded + position % kBlock * 2;
  }
  Ints sum[kRows][kCodeVectors] = {};
  for (int64_t d = 0; d < padded / 2; ++d) {
    if (values_ahead != nullptr) {
      __builtin_prefetch(from[0] + kKeysAhead * padded + d * kStep, 0, 2);
      __builtin_prefetch(values_ahead + d * kStep, 0, 2);
    }
    Ints key[kCodeVectors];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kCodeVectors; ++v) key[v] = load_codes(from[v] + d * 2 * kBlock);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Ints query = splat_pair(load_as<int32_t>(queries + r * padded + 2 * d));
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kCodeVectors; ++v) sum[r][v] = add_products(sum[r][v], query, key[v]);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kCodeVectors; ++v) {
    const int64_t position = at + v * kLanes;
    const Vec scale = load(scales + position);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r)
      store(scores + r * kKvBlock + position, to_float(sum[r][v]) * scale);
  }
}

/// Micro-kernel of values: out[r][at, at + kVectors · kLanes).
template <int kRows, int kVectors>
MORACLE_VECTOR_INLINE void sum_codes(const float* const* weights, const float* factors,
                                     const int8_t* values, int64_t padded, int64_t first,
                                     int64_t last, int64_t at, int64_t value_dim, float* const* out,
                                     Prefetcher& ahead) {
  Ints sum[kRows][kVectors] = {};
  for (int64_t pair = first / 2; pair < last / 2; ++pair) {
    ahead.step();
    const int8_t* const row = values + (pair * padded + at) * 2;
    Ints value[kVectors];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVectors; ++v) value[v] = load_codes(row + v * 2 * kLanes);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Ints weight = splat_pair(
          load_as<int32_t>(reinterpret_cast<const char*>(weights[r]) + pair * sizeof(int32_t)));
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = add_products(sum[r][v], weight, value[v]);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const int64_t c = at + v * kLanes;
      const Vec value = to_float(sum[r][v]) * factors[r];
      if (c + kLanes <= value_dim)
        store(out[r] + c, value);
      else if (c < value_dim)
        store_first(out[r] + c, value, value_dim - c);
    }
  }
}

/// Quantizes the weights of a row in place of its scores, and returns their scale. Positions of
/// [first, last) that the row does not see get 0.
MORACLE_VECTOR_INLINE float weight_codes(float* scores, const float* scales, Range range,
                                         int64_t first, int64_t last) {
  const int64_t begin = range.begin / kLanes * kLanes,
                end = (range.end + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = first; i < begin; i += kLanes) store(scores + i, Vec{});
  for (int64_t i = end; i < last; i += kLanes) store(scores + i, Vec{});
  Vec found{};
  Ints nan{};
  for (int64_t i = begin; i < end; i += kLanes) {
    const Vec share = load(scores + i);
    // A scale that was never written may be NaN; its weight is 0.
    const Vec weight = select(share == 0.0f, Vec{}, share * load(scales + i));
    store(scores + i, weight);
    found = at_least(found, weight);
    nan |= weight != weight;
  }
  float largest = 0;
  bool is_nan = false;
  for (int lane = 0; lane < kLanes; ++lane) {
    largest = found[lane] > largest ? found[lane] : largest;
    is_nan = is_nan || nan[lane] != 0;
  }
  const bool finite = !is_nan && largest < from_bits(kInfinity);
  to_codes16(scores + first, last - first, finite && largest > 0 ? kMostWeight / largest : 0.0f,
             reinterpret_cast<uint16_t*>(scores) + first);
  return finite ? largest / kMostWeight : from_bits(0x7fc00000u);
}

/// Calls each.template operator()<kRows>(first row) for groups of rows.
template <class Each>
MORACLE_VECTOR_INLINE void each_group(int num_rows, const Each& each) {
  int r = 0;
  for (; r + kCodeRows <= num_rows; r += kCodeRows) each.template operator()<kCodeRows>(r);
  if constexpr (kCodeRows > 4) {
    if (r + 4 <= num_rows) each.template operator()<4>(r), r += 4;
  }
  if (r + 2 <= num_rows) each.template operator()<2>(r), r += 2;
  if (r < num_rows) each.template operator()<1>(r);
}

void attend_int8(const AttendArgs& args) {
  float* const scores = args.scratch;
  auto* const queries = reinterpret_cast<uint16_t*>(scores + kAttendScratch);
  const int64_t padded = args.key_stride, columns = args.value_stride;
  float query_scales[kAttendRows], factors[kAttendRows];
  for (int r = 0; r < args.num_rows; ++r)
    query_scales[r] =
        query_codes(args.rows[r].query, args.head_dim, padded, queries + r * padded) * args.scale;
  // Round to tiles: a KV block holds a whole number of them.
  constexpr int64_t kTile = kCodeVectors * kLanes < kBlock ? kBlock : kCodeVectors * kLanes;
  const Range all = visible_to_any(args);
  const int64_t first = all.begin / kTile * kTile, last = (all.end + kTile - 1) / kTile * kTile;
  const auto* const keys = static_cast<const int8_t*>(args.keys) + args.from * padded;
  const auto* const values = static_cast<const int8_t*>(args.values) + args.from * columns;
  for (int64_t at = first; at < last; at += kCodeVectors * kLanes) {
    each_group(args.num_rows, [&]<int kRows>(int r) {
      score_codes<kRows>(queries + r * padded, padded, keys, args.key_scales + args.from, at,
                         scores + r * kKvBlock, r == 0 ? values + at * columns : nullptr);
    });
  }
  for (int r = 0; r < args.num_rows; ++r) {
    AttendRow& row = args.rows[r];
    const Range range = visible(args, r);
    SoftmaxState found{-__builtin_inff(), 0};
    if (range.begin < range.end)
      found = softmax(scores + r * kKvBlock, range.begin, range.end, query_scales[r]);
    row.largest = found.largest, row.sum = found.sum;
    if (first < last) {
      const Range some = range.begin < range.end ? range : Range{first, first};
      factors[r] =
          weight_codes(scores + r * kKvBlock, args.value_scales + args.from, some, first, last);
    }
  }
  Prefetcher next_keys = prefetch_next_keys(args);
  each_group(args.num_rows, [&]<int kRows>(int r) {
    const float* weights[kRows];
    float* out[kRows];
    for (int i = 0; i < kRows; ++i) {
      weights[i] = scores + (r + i) * kKvBlock, out[i] = args.rows[r + i].out;
      if (first >= last)
        for (int64_t c = 0; c < args.value_dim; ++c) out[i][c] = 0;
    }
    if (first >= last) return;
    int64_t at = 0;
    for (; at + kCodeVectors * kLanes <= columns; at += kCodeVectors * kLanes)
      sum_codes<kRows, kCodeVectors>(weights, factors + r, values, columns, first, last, at,
                                     args.value_dim, out, next_keys);
    if (at < columns)
      sum_codes<kRows, 1>(weights, factors + r, values, columns, first, last, at, args.value_dim,
                          out, next_keys);
  });
}

}  // namespace
}  // namespace moracle::cpu
