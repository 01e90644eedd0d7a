// Addresses of keys and values in the pages of a batch.
#pragma once

#include "kernels/batch.h"
#include "kernels/ops.h"

namespace moracle::cuda {

/// The page that holds a position of a sequence.
__device__ inline std::byte* page_of(const Batch& batch, int32_t sequence, int32_t position) {
  return batch.pages[batch.first_page[sequence] + position / static_cast<int32_t>(batch.page)];
}

/// Row of a position in a page [kv_heads, page, dim]: the positions of a head are adjacent.
__device__ inline int64_t row_in_page(const Batch& batch, int64_t head, int32_t position) {
  return head * batch.page + position % static_cast<int32_t>(batch.page);
}

/// The positions that a token sees: [begin, end).
struct View {
  int32_t begin, end;
};
__device__ inline View view_of(const Batch& batch, const AttentionShape& shape, int64_t token) {
  const int32_t position = batch.positions[token];
  const auto window = static_cast<int32_t>(shape.window), chunk = static_cast<int32_t>(shape.chunk);
  const int32_t begin = chunk > 0 ? position - position % chunk : 0;
  return {window > 0 ? max(begin, position + 1 - window) : begin, position + 1};
}

/// Sequences with up to this many tokens in a step run a decode kernel, which splits the view of
/// each token. The tokens of other sequences share the loads of a prefill kernel.
constexpr int64_t kMostDecodeTokens = 4;
__device__ inline bool is_decode(const Batch& batch, int32_t sequence) {
  return batch.first_token[sequence + 1] - batch.first_token[sequence] <= kMostDecodeTokens;
}

}  // namespace moracle::cuda
