// ExpertBatches over the host transport of a group, for tests on the CPU: every rank gets all rows,
// and takes its own.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "inner_exchange.h"
#include "parallel/expert_batches.h"

namespace moracle::testing {

class HostBatches final : public ExpertBatches {
 public:
  HostBatches(std::shared_ptr<Group> group, int64_t max_tokens)
      : group_(std::move(group)), max_tokens_(max_tokens) {}
  int64_t max_tokens() const override { return max_tokens_; }
  int64_t calls() const { return calls_; }

  Status prepare(const BatchShape&) override { return {}; }
  Status dispatch(const BatchShape& shape, const Rows& tokens, TopkIds topk_ids, const Rows& batch,
                  int32_t* counts, Stream) override {
    ++calls_;
    const int64_t ranks = group_->size(), count = tokens.values.rows;
    ids_ = gather(topk_ids.data, count * shape.top_k);
    const int64_t row = shape.cols * bits(shape.row) / 8;
    const auto rows = gather(static_cast<const std::byte*>(tokens.values.data), count * row);
    const auto scales = gather(tokens.scales, count * shape.num_scales);
    // Rows without a token must not matter.
    std::memset(batch.values.data, 0xff, shape.slots(ranks) * row);
    std::fill_n(counts, shape.num_local(ranks), 0);
    for (size_t slot = 0; slot < ids_.size(); ++slot) {
      const int64_t at = place(shape, group_->rank(), ids_[slot], counts);
      if (at < 0) continue;
      const int64_t token = static_cast<int64_t>(slot) / shape.top_k;
      std::memcpy(static_cast<std::byte*>(batch.values.data) + at * row, &rows[token * row], row);
      for (int64_t i = 0; i < shape.num_scales; ++i)
        batch.scales[at * shape.num_scales + i] = scales[token * shape.num_scales + i];
    }
    return {};
  }
  Status combine(const BatchShape& shape, const ExpertResults& results, TopkIds,
                 TopkWeights topk_weights, const Matrix& batch, const Matrix& output,
                 Stream) override {
    const int64_t ranks = group_->size(), cols = shape.hidden_size;
    auto* const to = static_cast<float*>(batch.data);
    for (int64_t r = 0; results.rows.rows > 0 && r < *results.count; ++r)
      std::copy_n(static_cast<const float*>(results.rows.data) + r * cols, cols,
                  to + results.row_slot[r] * cols);
    const auto all = gather(to, shape.slots(ranks) * cols);
    auto* const sums = static_cast<float*>(output.data);
    std::fill_n(sums, output.rows * cols, 0.0f);
    const auto own = static_cast<int64_t>(ids_.size()) / ranks * group_->rank();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<int32_t> counts(shape.num_local(ranks));
      for (size_t slot = 0; slot < ids_.size(); ++slot) {
        const int64_t at = place(shape, rank, ids_[slot], counts.data());
        const int64_t mine = static_cast<int64_t>(slot) - own;
        if (at < 0 || mine < 0 || mine >= output.rows * shape.top_k) continue;
        const float* const from = &all[(rank * shape.slots(ranks) + at) * cols];
        for (int64_t c = 0; c < cols; ++c)
          sums[mine / shape.top_k * cols + c] += topk_weights.data[mine] * from[c];
      }
    }
    return {};
  }

 private:
  template <class T>
  std::vector<T> gather(const T* own, int64_t count) {
    std::vector<T> all(count * group_->size());
    if (!group_->all_gather(std::as_bytes(std::span(own, count)),
                            std::as_writable_bytes(std::span(all))))
      throw std::runtime_error("a rank has ended");
    return all;
  }
  // The row of a rank's batch for the next token of an expert; -1: of another rank, or of none.
  int64_t place(const BatchShape& shape, int64_t rank, int32_t expert, int32_t* counts) const {
    const int64_t ranks = group_->size(), local = shape.num_local(ranks);
    if (expert < 0 || expert / local != rank) return -1;
    return expert % local * shape.expert_rows(ranks) + counts[expert % local]++;
  }

  std::shared_ptr<Group> group_;
  int64_t max_tokens_, calls_ = 0;
  std::vector<int32_t> ids_;  // of all ranks
};

/// The host's exchange with batches.
class BatchedExchange final : public InnerExchange {
 public:
  BatchedExchange(std::unique_ptr<Exchange> rest, std::shared_ptr<Group> group, int64_t max_tokens)
      : InnerExchange(std::move(rest)), batches_(std::move(group), max_tokens) {}
  std::string_view name() const override { return "batched"; }
  HostBatches* batches() override { return &batches_; }

 private:
  HostBatches batches_;
};

}  // namespace moracle::testing
