// Addresses of keys and values in the pages of a batch.
#pragma once

#include "kernels/batch.h"
#include "kernels/ops.h"

namespace moracle::cuda {

/// The page that holds a position of a sequence.
__device__ inline std::byte* page_of(const Batch& batch, int32_t sequence, int32_t position) {
  return batch.pages[batch.first_page[sequence] + position / static_cast<int32_t>(batch.page)];
}

/// The row of a position among those of a page, which hold one head of one position each. Heads
/// lie one after another: [kv_heads, page, dim], so that a head's positions are adjacent.
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

/// Up to this many tokens of a sequence, each token's view is split into parts by itself. More
/// tokens are processed together.
constexpr int64_t kFewTokens = 4;
__device__ inline bool is_few(const Batch& batch, int32_t sequence) {
  return batch.first_token[sequence + 1] - batch.first_token[sequence] <= kFewTokens;
}

}  // namespace moracle::cuda
