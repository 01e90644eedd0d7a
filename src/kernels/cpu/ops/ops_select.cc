// The indexer of sparse attention on host memory: scores of all visible positions, then the top-k
// of each token. A round takes the tokens whose scores fit the scratch. Its items are KV blocks of
// a few tokens, so that one token with a long context uses all threads, too.
#include <algorithm>

#include "kernels/cpu/ops/attend_items.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

using cpu::kKvBlock;

constexpr int64_t kRoundScores = 4 << 20;  // floats of scratch, unless one token needs more
constexpr int64_t kTokensOfItem = 8;       // tokens that share the loads of a KV block

}  // namespace

Status CpuOps::select_positions(const Matrix& q, const Matrix& weights, const Batch& batch,
                                const IndexShape& shape, int32_t* selected, std::byte*, Stream) {
  const std::lock_guard lock(attending_.mutex);
  int64_t longest = 0, first = batch.num_tokens;  // of the tokens that select
  for (int64_t t = batch.num_tokens - 1; t >= 0; --t) {
    if (batch.positions[t] < shape.top_k) continue;
    first = t;
    longest = std::max<int64_t>(longest, batch.positions[t] + 1);
  }
  const int64_t kv_blocks = (longest + kKvBlock - 1) / kKvBlock, stride = kv_blocks * kKvBlock;
  const int64_t most = std::min(batch.num_tokens - first,
                                std::max<int64_t>(1, kRoundScores / std::max(stride, kKvBlock)));
  std::vector<float>& scores = attending_.scores;
  scores.resize(std::max(scores.size(), static_cast<size_t>(most * stride)));
  const auto score = [&](int64_t t, int64_t block, float* to) {
    const int64_t position = batch.positions[t], begin = block * kKvBlock;
    if (position < shape.top_k || begin > position) return;
    const std::byte* const page =
        batch.pages[batch.first_page[batch.sequences[t]] + begin / batch.page];
    vector_.index_scores(
        {f32_row(q, t), f32_row(weights, t), shape.num_heads, shape.head_dim,
         page + shape.cache.index_keys +
             begin % batch.page * cached_bytes(shape.cache.index_dtype, shape.head_dim),
         cpu::cache_type(shape.cache.index_dtype), std::min(kKvBlock, position + 1 - begin),
         shape.scale, to + begin});
  };
  for (; first < batch.num_tokens; first += most) {
    const int64_t tokens = std::min(most, batch.num_tokens - first);
    const int64_t groups = (tokens + kTokensOfItem - 1) / kTokensOfItem;
    std::atomic<int64_t> next{0};
    const auto score_items =
        cpu::dynamic_schedule(next, groups * kv_blocks, [&](int, int64_t item) {
          const int64_t from = item / kv_blocks * kTokensOfItem;
          for (int64_t i = from; i < std::min(tokens, from + kTokensOfItem); ++i)
            score(first + i, item % kv_blocks, scores.data() + i * stride);
        });
    std::atomic<int64_t> next_token{0};
    const auto select_items = cpu::dynamic_schedule(next_token, tokens, [&](int thread, int64_t i) {
      const int64_t position = batch.positions[first + i];
      if (position < shape.top_k) return;
      const int32_t last = batch.first_token[batch.sequences[first + i] + 1] - 1;
      const int64_t row = shape.batch_invariant ? 0 : batch.positions[last] + 1;
      attending_.largest[thread].find(scores.data() + i * stride, position + 1, shape.top_k, row,
                                      selected + (first + i) * shape.top_k);
    });
    const bool few = tokens * longest * shape.num_heads * shape.head_dim < cpu::kWorthThreads;
    few ? score_items(0) : pool_.run(score_items);
    tokens == 1 || few ? select_items(0) : pool_.run(select_items);
  }
  return {};
}

}  // namespace moracle
