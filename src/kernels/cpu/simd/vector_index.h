// Index scores of sparse attention: the positive products of all index queries of a token with one
// key, weighted and summed in the order of the heads. A vector of a query is multiplied by the
// vectors of four keys (vector_scores.h), so a score depends on its key and the queries alone.
#pragma once

#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/cpu/simd/vector_scores.h"

namespace moracle::cpu {
namespace {

/// sums += weights · max(0, products), for the next kRows heads and four keys.
template <int kRows, class Element>
MORACLE_VECTOR_INLINE Four add_heads(const IndexScoreArgs& args, int64_t head,
                                     const Element* const (&keys)[4], Four sums) {
  const float* q[kRows];
  float products[kRows][4];
  float* to[kRows];
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) {
    q[r] = args.queries + (head + r) * args.head_dim;
    to[r] = products[r];
  }
  dots<kRows>(q, keys, args.head_dim, to);
  MORACLE_VECTOR_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Four product = load_as<Four>(products[r]);
    // A NaN stays.
    sums += args.weights[head + r] * (product < Four{} ? Four{} : product);
  }
  return sums;
}

template <class Element>
void index_scores_as(const IndexScoreArgs& args) {
  const Element* const all = static_cast<const Element*>(args.keys);
  for (int64_t at = 0; at < args.count; at += 4) {
    const Element* keys[4];
    for (int64_t j = 0; j < 4; ++j) {
      // Past the end, repeat the last key: that score is not used.
      const int64_t key = at + j < args.count ? at + j : args.count - 1;
      keys[j] = all + key * args.head_dim;
      __builtin_prefetch(keys[j] + kKeysAhead * args.head_dim, 0, 2);
    }
    if (args.weights == nullptr) {
      const float* const q[] = {args.queries};
      float* const to[] = {args.scores + at};
      dots<1>(q, keys, args.head_dim, to);
      continue;
    }
    Four sums{};
    int64_t head = 0;
    for (; head + kQueries <= args.num_heads; head += kQueries)
      sums = add_heads<kQueries>(args, head, keys, sums);
    for (; head < args.num_heads; ++head) sums = add_heads<1>(args, head, keys, sums);
    store(args.scores + at, sums * args.scale);
  }
}
void index_scores(const IndexScoreArgs& args) {
  switch (args.cache) {
    case CacheType::kF32:
      return index_scores_as<float>(args);
    case CacheType::kBF16:
      return index_scores_as<BF16>(args);
    case CacheType::kF16:
      return index_scores_as<F16>(args);
    case CacheType::kE4M3:
      return index_scores_as<E4M3>(args);
  }
}

}  // namespace
}  // namespace moracle::cpu
