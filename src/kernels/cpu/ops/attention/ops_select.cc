// The indexer of sparse attention on host memory: scores of all visible positions, then the top-k
// of each row: positions of a token, or blocks of one of its heads. A round takes the rows whose
// scores fit the scratch. Its items are KV blocks of a few rows, so that one token with a long
// context uses all threads, too.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/ops/attention/attend_items.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

using cpu::kKvBlock;

constexpr int64_t kRoundScores = 4 << 20;  // floats of scratch, unless one row needs more
constexpr int64_t kRowsOfItem = 8;         // rows that share the loads of a KV block

// A row of scores for each selection: of a token, or of one of its heads.
struct ScoreRows {
  const Matrix& q;
  const Matrix* weights;  // null: each head selects by itself
  const Batch& batch;
  const IndexShape& shape;
  int64_t first_token = 0, longest = 0;  // of the tokens that select

  ScoreRows(const Matrix& queries, const Matrix* of_heads, const Batch& step, const IndexShape& of)
      : q(queries), weights(of_heads), batch(step), shape(of), first_token(step.num_tokens) {
    for (int64_t t = batch.num_tokens - 1; t >= 0; --t) {
      if (batch.positions[t] < shape.top_k) continue;
      first_token = t;
      longest = std::max<int64_t>(longest, batch.positions[t] + 1);
    }
  }
  int64_t of_token() const { return weights == nullptr ? shape.num_heads : 1; }
  int64_t count() const { return (batch.num_tokens - first_token) * of_token(); }
  int64_t token(int64_t row) const { return first_token + row / of_token(); }
  int64_t kv_blocks() const { return (longest + kKvBlock - 1) / kKvBlock; }

  // The scores of a KV block.
  void score(const cpu::VectorOps& vector, int64_t row, int64_t kv_block, float* to) const {
    const int64_t t = token(row), position = batch.positions[t], begin = kv_block * kKvBlock;
    if (position < shape.top_k || begin > position) return;
    const std::byte* const page =
        batch.pages[batch.first_page[batch.sequences[t]] + begin / batch.page];
    const int64_t head = row % of_token();
    vector.index_scores(
        {f32_row(q, t) + head * shape.head_dim, weights == nullptr ? nullptr : f32_row(*weights, t),
         weights == nullptr ? 1 : shape.num_heads, shape.head_dim,
         page + shape.cache.index_keys +
             begin % batch.page * cached_bytes(shape.cache.index_dtype, shape.head_dim),
         cpu::cache_type(shape.cache.index_dtype), std::min(kKvBlock, position + 1 - begin),
         shape.scale, to + begin});
  }
  // Replaces the scores of positions by those of their blocks. A NaN stays.
  void pool(int64_t position, float* scores) const {
    const int64_t own = position / shape.block;
    for (int64_t b = 0; b <= own; ++b) {
      const int64_t begin = b * shape.block, end = std::min(begin + shape.block, position + 1);
      float most = scores[begin];
      for (int64_t j = begin + 1; j < end; ++j)
        most = std::isnan(most) || most > scores[j] ? most : scores[j];
      scores[b] = b > own - shape.local_blocks ? std::numeric_limits<float>::infinity() : most;
    }
  }
  void select(cpu::LargestScores& largest, int64_t row, float* scores, int32_t* selected) const {
    const int64_t t = token(row), position = batch.positions[t], k = shape.top_k / shape.block;
    if (position < shape.top_k) return;
    if (weights == nullptr) pool(position, scores);
    const int32_t last = batch.positions[batch.first_token[batch.sequences[t] + 1] - 1];
    largest.find(scores, position / shape.block + 1, k,
                 shape.batch_invariant ? 0 : last / shape.block + 1,
                 selected + (t * of_token() + row % of_token()) * k);
  }
};

}  // namespace

void CpuOps::select(const Matrix& q, const Matrix* weights, const Batch& batch,
                    const IndexShape& shape, int32_t* selected) {
  const std::lock_guard lock(attending_.mutex);
  const ScoreRows all{q, weights, batch, shape};
  const int64_t kv_blocks = all.kv_blocks(), stride = kv_blocks * kKvBlock;
  const int64_t most = std::min(
      all.count(), std::max<int64_t>(1, kRoundScores / std::max<int64_t>(stride, kKvBlock)));
  std::vector<float>& scores = attending_.scores;
  scores.resize(std::max(scores.size(), static_cast<size_t>(most * stride)));
  for (int64_t first = 0; first < all.count(); first += most) {
    const int64_t rows = std::min(most, all.count() - first);
    const int64_t groups = (rows + kRowsOfItem - 1) / kRowsOfItem;
    std::atomic<int64_t> next{0};
    const auto score_items =
        cpu::dynamic_schedule(next, groups * kv_blocks, [&](int, int64_t item) {
          const int64_t from = item / kv_blocks * kRowsOfItem;
          for (int64_t i = from; i < std::min(rows, from + kRowsOfItem); ++i)
            all.score(vector_, first + i, item % kv_blocks, scores.data() + i * stride);
        });
    std::atomic<int64_t> next_row{0};
    const auto select_items = cpu::dynamic_schedule(next_row, rows, [&](int thread, int64_t i) {
      all.select(attending_.largest[thread], first + i, scores.data() + i * stride, selected);
    });
    const int64_t heads = shape.num_heads / all.of_token();
    const bool few = rows * all.longest * heads * shape.head_dim < cpu::kWorthThreads;
    few ? score_items(0) : pool_.run(score_items);
    rows == 1 || few ? select_items(0) : pool_.run(select_items);
  }
}

Status CpuOps::select_positions(const Matrix& q, const Matrix& weights, const Batch& batch,
                                const IndexShape& shape, int32_t* selected, std::byte*, Stream) {
  select(q, &weights, batch, shape, selected);
  return {};
}

Status CpuOps::select_blocks(const Matrix& q, const Batch& batch, const IndexShape& shape,
                             int32_t* selected, std::byte*, Stream) {
  select(q, nullptr, batch, shape, selected);
  return {};
}

}  // namespace moracle
