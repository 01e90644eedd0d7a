#include "serve/engine/ranks/sequence_ranks.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle::serve {

bool spreads_sequences(Model& model) {
  return ModelAccess::state(model).dispatch != nullptr;
}

SequenceRanks::SequenceRanks(Model& model)
    : model_(model),
      group_(*model.group()),
      num_sequences_(static_cast<size_t>(model.group()->size())) {}

bool SequenceRanks::start(SequenceId id) {
  const auto [at, is_new] = owners_.try_emplace(id, 0);
  if (is_new) {
    const auto least = std::min_element(num_sequences_.begin(), num_sequences_.end());
    at->second = least - num_sequences_.begin();
    ++*least;
  }
  return at->second == group_.rank();
}

void SequenceRanks::drop(SequenceId id) {
  const auto at = owners_.find(id);
  if (at == owners_.end()) return;
  --num_sequences_[at->second];
  owners_.erase(at);
}

std::vector<SequenceStep> SequenceRanks::own(std::span<const SequenceStep> steps) {
  std::vector<SequenceStep> own;
  std::vector<int64_t> num_rows(num_sequences_.size());
  rows_.clear();
  for (const SequenceStep& step : steps) {
    const auto at = owners_.find(step.id);
    // Rank 0 reports unknown ids.
    const int64_t owner = at == owners_.end() ? 0 : at->second;
    if (owner == group_.rank()) own.push_back(step);
    for (size_t i = 0; i < step.tokens.size(); ++i) rows_.push_back({owner, num_rows[owner]++});
  }
  return own;
}

Status SequenceRanks::collect(int64_t first, int64_t count, std::vector<float>& to) {
  if (first < 0 || count < 0 || first + count > static_cast<int64_t>(rows_.size())) {
    return Error{ErrorKind::kInvalidArgument, "", "logits",
                 str("rows of the last step, which has ", rows_.size()),
                 str("they are ", first, " to ", first + count - 1)};
  }
  const auto vocab = static_cast<size_t>(model_.vocab_size());
  const std::span<const Row> rows = std::span(rows_).subspan(first, count);
  std::vector<float> own;
  for (const Row& row : rows) {
    if (row.rank != group_.rank()) continue;
    MORACLE_TRY(const std::span<const float> logits, model_.logits(row.row, 1));
    own.insert(own.end(), logits.begin(), logits.end());
  }
  std::vector<std::vector<float>> arrived(num_sequences_.size());
  std::vector<Group::Block> send(arrived.size()), receive(arrived.size());
  send[0] = {reinterpret_cast<std::byte*>(own.data()), own.size() * sizeof(float)};
  for (size_t r = 0; r < arrived.size() && group_.rank() == 0; ++r) {
    const auto is_there = [&](const Row& row) { return row.rank == static_cast<int64_t>(r); };
    arrived[r].resize(std::count_if(rows.begin(), rows.end(), is_there) * vocab);
    receive[r] = {reinterpret_cast<std::byte*>(arrived[r].data()),
                  arrived[r].size() * sizeof(float)};
  }
  MORACLE_CHECK(group_.exchange(send, receive));
  if (group_.rank() > 0) return {};
  to.resize(count * vocab);
  std::vector<size_t> taken(arrived.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = rows[i].rank;
    std::memcpy(to.data() + i * vocab, arrived[r].data() + taken[r]++ * vocab,
                vocab * sizeof(float));
  }
  return {};
}

}  // namespace moracle::serve
