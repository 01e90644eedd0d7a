// Tiles of queries of prefill attention.
#pragma once

#include "kernels/cuda/attention/heads.cuh"

namespace moracle::cuda {

/// kQueries queries of one KV head of a sequence: all heads that share its keys, token by token.
template <int kQueries>
struct QueryTile {
  int64_t first_token;
  int32_t first_row, rows, kv, heads, sequence;
  int32_t begin, end;  // pages that they see

  /// Tile `number`; those with the largest views come first. False: it has no queries.
  __device__ bool find(const AttendArgs& a, int64_t number, int64_t tiles) {
    const int64_t columns = a.shape.num_kv_heads * a.batch.num_sequences;
    heads = static_cast<int32_t>(heads_per_kv(a.shape));
    kv = static_cast<int32_t>(number % a.shape.num_kv_heads);
    sequence = static_cast<int32_t>(number % columns / a.shape.num_kv_heads);
    const int32_t first = a.batch.first_token[sequence];
    first_token = first;
    rows = (a.batch.first_token[sequence + 1] - first) * heads;
    first_row = static_cast<int32_t>(tiles - 1 - number / columns) * kQueries;
    if (is_decode(a.batch, sequence) || first_row >= rows) return false;
    begin = view_of_row(a, first_row).begin / kPagePositions;
    end = (last_seen(a) + kPagePositions - 1) / kPagePositions;
    return true;
  }
  __device__ int64_t token_of(int32_t row) const { return first_token + row / heads; }
  __device__ int32_t head_of(int32_t row) const { return kv * heads + row % heads; }
  /// Views advance with the rows. A row without a query has the view of the last query.
  __device__ View view_of_row(const AttendArgs& a, int32_t row) const {
    return view_of(a.batch, a.shape, token_of(min(row, rows - 1)));
  }
  __device__ int32_t last_seen(const AttendArgs& a) const {
    return view_of_row(a, first_row + kQueries - 1).end;
  }
};
/// Upper bound on the tiles of a KV head of a sequence.
template <int kQueries>
int64_t most_tiles(const AttendArgs& a) {
  const int64_t rows = a.batch.most_tokens * (a.shape.num_heads / a.shape.num_kv_heads);
  return (rows + kQueries - 1) / kQueries;
}

}  // namespace moracle::cuda
