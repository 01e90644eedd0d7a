#include "models/speculation/next_tokens.h"

#include <algorithm>

#include "base/try.h"
#include "kernels/kernel_device.h"
#include "models/decoder/model_state.h"

namespace moracle {
namespace next_tokens {
namespace {

Status copy_rows(Model::State& m, const Matrix& from, const Matrix& to) {
  if (from.data == to.data) return {};
  Ops& ops = kernel_device(m.workspace->device()).ops();
  return ops.copy_heads(from, from.cols, to, to.cols, 1, from.cols, {});
}

// The likeliest token after each of the first `count` rows.
Status draw(Model& layer, int64_t count, std::vector<int32_t>& ids) {
  ids.clear();
  for (int64_t first = 0; first < count; first += Model::kMaxLogitRows) {
    const int64_t part = std::min(Model::kMaxLogitRows, count - first);
    MORACLE_TRY(const Model::TopKLogits largest, layer.top_k_logits(first, part, 1));
    ids.insert(ids.end(), largest.ids.begin(), largest.ids.end());
  }
  return {};
}

// The hidden states that the layer reads, of the model or of the layer itself.
const Matrix& states_of(const Model::State& m, const Model::State& layer) {
  return layer.join->before_norm ? m.activations.hidden : m.activations.normed;
}

struct Drafting {
  size_t index;  // in the rows of the call
  int64_t row;   // of the layer's last step
};

// Drafts one token after another, for all sequences side by side.
Status draft(Model& layer, std::span<const NextTokenRows> rows, std::vector<Drafting> sequences,
             std::vector<std::vector<int32_t>>& drafts) {
  Model::State& m = ModelAccess::state(layer);
  const Matrix &normed = m.activations.normed, &states = states_of(m, m);
  std::vector<int32_t> ids;
  while (!sequences.empty()) {
    // Rows only move to smaller numbers. The output reads `normed`.
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int64_t from = sequences[i].row, to = static_cast<int64_t>(i);
      MORACLE_CHECK(copy_rows(m, normed.slice(from, 1), normed.slice(to, 1)));
      if (states.data != normed.data)
        MORACLE_CHECK(copy_rows(m, states.slice(from, 1), states.slice(to, 1)));
    }
    const auto count = static_cast<int64_t>(sequences.size());
    MORACLE_CHECK(draw(layer, count, ids));
    std::vector<Drafting> next;
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < sequences.size(); ++i) {
      const size_t index = sequences[i].index;
      drafts[index].push_back(ids[i]);
      if (static_cast<int64_t>(drafts[index].size()) == rows[index].drafts) continue;
      const auto row = static_cast<int64_t>(next.size());
      MORACLE_CHECK(
          copy_rows(m, states.slice(static_cast<int64_t>(i), 1), m.join->given.slice(row, 1)));
      next.push_back({index, row});
      tokens.push_back(ids[i]);
    }
    sequences = std::move(next);
    if (sequences.empty()) break;
    std::vector<Model::Step> steps;
    for (const Drafting& one : sequences)
      steps.push_back({{&tokens[steps.size()], 1}, rows[one.index].cache});
    MORACLE_CHECK(layer.forward(steps));
  }
  return {};
}

}  // namespace
}  // namespace next_tokens

Result<KvCache> make_next_token_cache(const Model& model, int64_t capacity) {
  return ModelAccess::next_tokens(model)->make_cache(capacity);
}

Result<std::vector<std::vector<int32_t>>> draft_next_tokens(Model& model,
                                                            std::span<const NextTokenRows> rows) {
  Model::State& m = ModelAccess::state(model);
  const DeviceLock lock = m.workspace->device().lock();
  Model& layer = *m.next_tokens;
  Model::State& own = ModelAccess::state(layer);
  std::vector<std::vector<int32_t>> drafts(rows.size());
  std::vector<Model::Step> steps;
  std::vector<next_tokens::Drafting> drafting;
  int64_t row = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const NextTokenRows& one = rows[i];
    const auto count = static_cast<int64_t>(one.tokens.size());
    if (one.cache == nullptr || count == 0) continue;
    MORACLE_CHECK(next_tokens::copy_rows(own,
                                         next_tokens::states_of(m, own).slice(one.first_row, count),
                                         own.join->given.slice(row, count)));
    steps.push_back({one.tokens, one.cache});
    row += count;
    if (one.drafts > 0) drafting.push_back({i, row - 1});
  }
  if (steps.empty()) return drafts;
  MORACLE_CHECK(layer.forward(steps));
  std::vector<int64_t> lengths;
  for (const Model::Step& step : steps) lengths.push_back(step.cache->length());
  MORACLE_CHECK(next_tokens::draft(layer, rows, std::move(drafting), drafts));
  for (size_t i = 0; i < steps.size(); ++i) MORACLE_CHECK(steps[i].cache->truncate(lengths[i]));
  return drafts;
}

}  // namespace moracle
