// Attention of query rows over one KV block, in f32:
//
//   scores = q Kᵀ · scale      weights = exp(scores - largest score)      out = weights V
//
// Keys need no packing: vectors of one query are multiplied by the vectors of four keys. Values are
// multiplied by broadcast weights. Every score is one sum in a fixed order, and every output is one
// chain along the positions. So the grouping of rows and keys changes no bit.
#pragma once

#include "kernels/cpu/simd/vector_activate.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/cpu/simd/vector_scores.h"

namespace moracle::cpu {
namespace {

/// Micro-kernel: c[r][at, at + kWide · kLanes) (+)= Σ_k a[r][k] · b[k][...].
template <int kRows, int kWide, class Element>
MORACLE_VECTOR_INLINE void attend_tile(const float* const* a, int64_t depth, const Element* b,
                                       int64_t b_stride, float* const* c, int64_t at,
                                       bool accumulate, Prefetcher& ahead) {
  Vec sum[kRows][kWide];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) sum[r][v] = accumulate ? load(c[r] + at + v * kLanes) : Vec{};
  }
  const float* x[kRows];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) x[r] = a[r];
  for (int64_t k = 0; k < depth; ++k, b += b_stride) {
    ahead.step(), ahead.step();
    Vec row[kWide];
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) row[v] = load(b + v * kLanes);
    MORACLE_VECTOR_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = splat(x[r][k]);
      MORACLE_VECTOR_UNROLL
      for (int v = 0; v < kWide; ++v) sum[r][v] = multiply_add(factor, row[v], sum[r][v]);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) store(c[r] + at + v * kLanes, sum[r][v]);
  }
}

/// Columns of a micro-kernel, in vectors: enough to hide the latency of an FMA, few enough to stay
/// in registers.
constexpr int wide(int rows) {
  return rows == 1 ? 8 : (rows == 2 || kLanes == 16) ? 4 : 2;
}

template <int kRows, class Element>
void attend_rows(const float* const* a, int64_t depth, const Element* b, int64_t b_stride,
                 int64_t cols, float* const* c, bool accumulate, Prefetcher& ahead) {
  constexpr int kWide = wide(kRows);
  int64_t at = 0;
  for (; at + kWide * kLanes <= cols; at += kWide * kLanes)
    attend_tile<kRows, kWide>(a, depth, b + at, b_stride, c, at, accumulate, ahead);
  if constexpr (kWide > 2) {
    for (; at + kWide / 2 * kLanes <= cols; at += kWide / 2 * kLanes)
      attend_tile<kRows, kWide / 2>(a, depth, b + at, b_stride, c, at, accumulate, ahead);
  }
  for (; at + kLanes <= cols; at += kLanes)
    attend_tile<kRows, 1>(a, depth, b + at, b_stride, c, at, accumulate, ahead);
  const int64_t left = cols - at;
  if (left == 0) return;
  for (int r = 0; r < kRows; ++r) {
    Vec sum = accumulate ? load_first(c[r] + at, left) : Vec{};
    for (int64_t k = 0; k < depth; ++k)
      sum = multiply_add(splat(a[r][k]), load_first(b + k * b_stride + at, left), sum);
    store_first(c[r] + at, sum, left);
  }
}
template <class Element>
void attend_rows(int rows, const float* const* a, int64_t depth, const Element* b, int64_t b_stride,
                 int64_t cols, float* const* c, bool accumulate, Prefetcher& ahead) {
  switch (rows) {
    case 1:
      return attend_rows<1>(a, depth, b, b_stride, cols, c, accumulate, ahead);
    case 2:
      return attend_rows<2>(a, depth, b, b_stride, cols, c, accumulate, ahead);
    case 3:
      return attend_rows<3>(a, depth, b, b_stride, cols, c, accumulate, ahead);
    case 4:
      return attend_rows<4>(a, depth, b, b_stride, cols, c, accumulate, ahead);
  }
}
constexpr int kTileRows = 4;
struct SoftmaxState {
  float largest, sum;
};
/// Turns scores[from, to) into weights. Vectors start at multiples of kLanes of the KV block, so
/// that the order of the sum depends on the positions only. Lanes outside the range get weight 0.
MORACLE_VECTOR_INLINE SoftmaxState softmax(float* scores, int64_t from, int64_t to, float factor) {
  const int64_t begin = from / kLanes * kLanes, end = (to + kLanes - 1) / kLanes * kLanes;
  Vec most = splat(-__builtin_inff());
  for (int64_t i = begin; i < end; i += kLanes) store(scores + i, load(scores + i) * factor);
  for (int64_t i = begin; i < from; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = to; i < end; ++i) scores[i] = -__builtin_inff();
  for (int64_t i = begin; i < end; i += kLanes) most = at_least(most, load(scores + i));
  float largest = most[0];
  for (int lane = 1; lane < kLanes; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  Vec sum{};
  for (int64_t i = begin; i < end; i += kLanes) {
    const Vec weight = exp(load(scores + i) - largest);
    store(scores + i, weight);
    sum += weight;
  }
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  return {largest, total};
}

MORACLE_VECTOR_INLINE int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}
MORACLE_VECTOR_INLINE int64_t most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/// Positions of the KV block, relative to `from`.
struct Range {
  int64_t begin, end;
};
/// Those that row r sees.
MORACLE_VECTOR_INLINE Range visible(const AttendArgs& args, int r) {
  return {most(args.rows[r].begin, args.from) - args.from,
          least(args.rows[r].end, args.to) - args.from};
}
/// Those that any row sees; empty if there are none.
inline Range visible_to_any(const AttendArgs& args) {
  Range all{kKvBlock, 0};
  for (int r = 0; r < args.num_rows; ++r) {
    const Range one = visible(args, r);
    if (one.begin < one.end) all = {least(all.begin, one.begin), most(all.end, one.end)};
  }
  return all;
}

/// Prefetches a row of memory.
template <class Element>
MORACLE_VECTOR_INLINE void prefetch_row(const void* row, int64_t columns) {
  const auto* const elements = static_cast<const Element*>(row);
  constexpr auto kLine = static_cast<int64_t>(64 / sizeof(Element));
  for (int64_t d = 0; d < columns; d += kLine) __builtin_prefetch(elements + d, 0, 2);
}

/// attend_scores of selected positions, which lie anywhere: also prefetches their values.
template <class Element>
void selected_scores(const AttendArgs& args, int64_t last, float* scores) {
  for (int64_t at = 0; at < last; at += 4) {
    const Element* keys[4];
    for (int64_t j = 0; j < 4; ++j) {
      // Past the end, repeat the last key: that score is not used.
      keys[j] = static_cast<const Element*>(args.key_rows[least(at + j, last - 1)]);
      prefetch_row<Element>(args.key_rows[least(at + j + kKeysAhead, last - 1)], args.head_dim);
      prefetch_row<Element>(args.value_rows[least(at + j, last - 1)], args.value_dim);
    }
    for (int r = 0; r < args.num_rows; ++r) {
      const float* const q[] = {args.rows[r].query};
      float* const to[] = {scores + r * kKvBlock + at};
      dots<1>(q, keys, args.head_dim, to);
    }
  }
}

template <class Element>
void attend_scores(const AttendArgs& args, int64_t first, int64_t last, float* scores) {
  if (args.key_rows != nullptr) return selected_scores<Element>(args, last, scores);
  constexpr int64_t kSize = sizeof(Element), kLine = 64 / kSize;
  const int64_t dim = args.head_dim, stride = args.key_stride;
  const Element* const all_keys = static_cast<const Element*>(args.keys);
  Prefetcher values{
      static_cast<const char*>(args.values) + (args.from + first) * args.value_stride * kSize,
      args.value_stride * kSize, args.value_dim * kSize, last - first};
  for (int64_t at = first / 4 * 4; at < last; at += 4) {
    const Element* keys[4];
    for (int64_t j = 0; j < 4; ++j) {
      // Past the end, repeat the last key: that score is not used.
      keys[j] = all_keys + (args.from + least(at + j, last - 1)) * stride;
      const Element* const ahead = keys[j] + kKeysAhead * stride;
      for (int64_t d = 0; d < dim; d += kLine) __builtin_prefetch(ahead + d, 0, 2);
      for (int64_t d = 0; d < args.value_dim; d += kLine) values.step();
    }
    const float* q[kQueries];
    float* to[kQueries];
    for (int r = 0; r < args.num_rows; r += kQueries) {
      const int rows = static_cast<int>(least(kQueries, args.num_rows - r));
      for (int i = 0; i < rows; ++i) {
        q[i] = args.rows[r + i].query;
        to[i] = scores + (r + i) * kKvBlock + at;
      }
      if (rows == kQueries) {
        dots<kQueries>(q, keys, dim, to);
      } else {
        for (int i = 0; i < rows; ++i) dots<1>(q + i, keys, dim, to + i);
      }
    }
  }
}

// ---- values ----

/// Prefetches the keys of the next KV block during the products of values.
MORACLE_VECTOR_INLINE Prefetcher prefetch_next_keys(const AttendArgs& args) {
  return {static_cast<const char*>(args.next_keys), 0, args.next_bytes,
          args.next_keys != nullptr ? 1 : 0};
}

/// out = Σ_k weights[k] · rows[k], k ascending, for kWide vectors of columns.
template <int kWide, class Element>
MORACLE_VECTOR_INLINE void add_selected(const float* weights, const void* const* rows,
                                        int64_t count, int64_t column, float* out) {
  Vec sum[kWide] = {};
  for (int64_t k = 0; k < count; ++k) {
    const Vec weight = splat(weights[k]);
    const Element* const row = static_cast<const Element*>(rows[k]) + column;
    MORACLE_VECTOR_UNROLL
    for (int i = 0; i < kWide; ++i) sum[i] = multiply_add(weight, load(row + i * kLanes), sum[i]);
  }
  MORACLE_VECTOR_UNROLL
  for (int i = 0; i < kWide; ++i) store(out + column + i * kLanes, sum[i]);
}
template <class Element>
void selected_values(const AttendArgs& args, const float* scores) {
  constexpr int kWide = kLanes == 16 ? 16 : 8;
  for (int r = 0; r < args.num_rows; ++r) {
    const float* const weights = scores + r * kKvBlock;
    float* const out = args.rows[r].out;
    const int64_t count = visible(args, r).end, cols = args.value_dim;
    int64_t at = 0;
    for (; at + kWide * kLanes <= cols; at += kWide * kLanes)
      add_selected<kWide, Element>(weights, args.value_rows, count, at, out);
    for (; at + 4 * kLanes <= cols; at += 4 * kLanes)
      add_selected<4, Element>(weights, args.value_rows, count, at, out);
    for (; at + kLanes <= cols; at += kLanes)
      add_selected<1, Element>(weights, args.value_rows, count, at, out);
    if (at == cols) continue;
    Vec sum{};
    for (int64_t k = 0; k < count; ++k) {
      const Element* const row = static_cast<const Element*>(args.value_rows[k]) + at;
      sum = multiply_add(splat(weights[k]), load_first(row, cols - at), sum);
    }
    store_first(out + at, sum, cols - at);
  }
}

template <class Element>
void attend_values(const AttendArgs& args, const float* scores) {
  if (args.value_rows != nullptr) return selected_values<Element>(args, scores);
  const Element* const values = static_cast<const Element*>(args.values);
  Prefetcher next_keys = prefetch_next_keys(args);
  for (int r = 0; r < args.num_rows; r += kTileRows) {
    const int rows = static_cast<int>(least(kTileRows, args.num_rows - r));
    // Rows of a tile may begin and end at different positions. Multiply their common range
    // together.
    Range shared = visible(args, r);
    for (int i = 1; i < rows; ++i) {
      const Range one = visible(args, r + i);
      shared = {most(shared.begin, one.begin), least(shared.end, one.end)};
    }
    const float* weights[kTileRows];
    float* out[kTileRows];
    auto add_unshared = [&](int i, int64_t begin, int64_t end) {
      if (begin >= end) return;
      const float* w[] = {scores + (r + i) * kKvBlock + begin};
      attend_rows<1>(w, end - begin, values + (args.from + begin) * args.value_stride,
                     args.value_stride, args.value_dim, out + i, true, next_keys);
    };
    const bool any = shared.begin < shared.end;
    for (int i = 0; i < rows; ++i) {
      out[i] = args.rows[r + i].out;
      for (int64_t c = 0; c < args.value_dim; ++c) out[i][c] = 0;
      const Range one = visible(args, r + i);
      add_unshared(i, one.begin, any ? shared.begin : one.end);
      weights[i] = scores + (r + i) * kKvBlock + shared.begin;
    }
    if (!any) continue;
    attend_rows(rows, weights, shared.end - shared.begin,
                values + (args.from + shared.begin) * args.value_stride, args.value_stride,
                args.value_dim, out, true, next_keys);
    for (int i = 0; i < rows; ++i) add_unshared(i, shared.end, visible(args, r + i).end);
  }
}

template <class Element>
void attend_as(const AttendArgs& args) {
  float* const scores = args.scratch;
  const Range all = visible_to_any(args);
  if (all.begin < all.end) attend_scores<Element>(args, all.begin, all.end, scores);
  for (int r = 0; r < args.num_rows; ++r) {
    const Range range = visible(args, r);
    AttendRow& row = args.rows[r];
    row.largest = -__builtin_inff(), row.sum = 0;
    if (range.begin >= range.end) continue;
    const SoftmaxState found = softmax(scores + r * kKvBlock, range.begin, range.end, args.scale);
    row.largest = found.largest, row.sum = found.sum;
  }
  attend_values<Element>(args, scores);
}
void attend(const AttendArgs& args) {
  switch (args.cache) {
    case CacheType::kF32:
      return attend_as<float>(args);
    case CacheType::kBF16:
      return attend_as<BF16>(args);
    case CacheType::kF16:
      return attend_as<F16>(args);
    case CacheType::kE4M3:
      return attend_as<E4M3>(args);
  }
}

void attend_merge(const AttendRow& partial, int64_t value_dim, AttendRow& whole) {
  const float largest = partial.largest > whole.largest ? partial.largest : whole.largest;
  const float shrink = exp(splat(whole.largest - largest))[0];
  const float weight = exp(splat(partial.largest - largest))[0];
  whole.largest = largest;
  whole.sum = whole.sum * shrink + partial.sum * weight;
  each(whole.out, partial.out, value_dim, whole.out,
       [&](Vec a, Vec b) { return multiply_add(b, splat(weight), a * shrink); });
}

}  // namespace
}  // namespace moracle::cpu
