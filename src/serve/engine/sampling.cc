// Draws the tokens that follow a step. A sequence with drafts takes several: its rows are drawn one
// after another while each drawn token is the draft.
#include <utility>

#include "base/try.h"
#include "serve/engine/engine.h"

namespace moracle::serve {

Status Engine::sample_next(std::span<const Chunk> chunks) {
  std::vector<SequenceRows> pending;  // their rows follow one another from `first` on
  int64_t row = 0, first = 0, num_rows = 0;
  const auto sample_pending = [&] {
    return pending.empty() ? Status() : sample_rows(first, std::exchange(pending, {}));
  };
  for (const Chunk& chunk : chunks) {
    const int64_t last = row + chunk.count - 1;
    row += chunk.num_rows();
    const auto at = sequences_.find(chunk.id);
    if (!chunk.samples || at == sequences_.end()) continue;
    Sequence& sequence = at->second;
    sequence.accepted = 0;
    if (sequence.job.max_tokens == 0) {
      end(chunk.id, {.finish = Finish::kLength});
      continue;
    }
    const int64_t wanted = 1 + chunk.drafts;
    if (num_rows + wanted > Model::kMaxLogitRows || first + num_rows != last)
      MORACLE_CHECK(sample_pending());
    if (pending.empty()) {
      first = last;
      num_rows = 0;
    }
    pending.push_back({chunk.id, num_rows, chunk.drafts});
    num_rows += wanted;
  }
  MORACLE_CHECK(sample_pending());
  return settle_drafts(chunks);
}

// The rows of these sequences follow one another from `first` on.
Status Engine::sample_rows(int64_t first, std::vector<SequenceRows> sequences) {
  MORACLE_TRY(const RowLogits rows, read_rows(first, sequences));
  while (!sequences.empty()) {
    MORACLE_TRY(std::vector<DrawnToken> drawn, draw_rows(rows, first, sequences));
    profiler_.end_on_device("sampling");
    std::vector<SequenceRows> next;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (take_drawn(sequences[i], std::move(drawn[i]))) next.push_back(sequences[i]);
    }
    sequences = std::move(next);
    profiler_.end("scheduling");
  }
  return {};
}

Result<std::vector<DrawnToken>> Engine::draw_rows(const RowLogits& rows, int64_t first,
                                                  std::span<const SequenceRows> sequences) {
  const auto count = static_cast<int64_t>(sequences.size());
  std::vector<DrawnToken> drawn(sequences.size());
  std::vector<Sequence*> owners;
  for (const SequenceRows& one : sequences) owners.push_back(&sequences_.at(one.id));
  if (rows.has_all()) {
    on_all(count, [&](int64_t i, RowDrawer& drawer) {
      drawn[i] = drawer.draw(*owners[i], rows.all(sequences[i].row));
    });
    return drawn;
  }
  std::vector<int64_t> again;  // rows that need all logits
  RowDrawer& drawer = drawers_.empty() ? drawers_.emplace_back() : drawers_[0];
  for (int64_t i = 0; i < count; ++i) {
    auto one = drawer.draw(*owners[i], rows.largest(sequences[i].row), model_.vocab_size());
    if (one)
      drawn[i] = *std::move(one);
    else
      again.push_back(i);
  }
  // Read neighbouring rows at once, with the few rows between them.
  constexpr int64_t kMostBetween = 4;
  for (auto begin = again.begin(); begin != again.end();) {
    auto end = begin + 1;
    while (end != again.end() &&
           sequences[*end].row - sequences[*(end - 1)].row <= kMostBetween + 1)
      ++end;
    const int64_t from = sequences[*begin].row;
    MORACLE_TRY(const std::span<const float> logits,
                leader_.logits(first + from, sequences[*(end - 1)].row - from + 1));
    const auto vocab = static_cast<size_t>(model_.vocab_size());
    on_all(end - begin, [&](int64_t i, RowDrawer& other) {
      const int64_t at = begin[i];
      drawn[at] =
          other.draw(*owners[at], logits.subspan((sequences[at].row - from) * vocab, vocab));
    });
    begin = end;
  }
  return drawn;
}

// True if the token is an accepted draft: the sequence then draws from its next row. A sequence
// whose grammar fails ends.
bool Engine::take_drawn(SequenceRows& at, DrawnToken drawn) {
  const auto found = sequences_.find(at.id);
  if (found == sequences_.end()) return false;
  const Sequence& sequence = found->second;
  if (!drawn.status) {
    const Error& error = drawn.status.error();
    const bool is_forbidden = error.kind == ErrorKind::kUnsupported;
    end(at.id, {.finish = is_forbidden ? Finish::kForbidden : Finish::kFailed,
                .message = error.to_string()});
    return false;
  }
  const bool accepts =
      at.drafts > 0 && drawn.id == sequence.drafts[static_cast<size_t>(at.accepted)];
  take_token(at.id, drawn.id, std::move(drawn.scores), accepts);
  const auto still = sequences_.find(at.id);
  if (!accepts || still == sequences_.end()) return false;
  still->second.accepted = ++at.accepted;
  ++at.row;
  --at.drafts;
  return true;
}

}  // namespace moracle::serve
