// Draws the tokens that follow a step. A sequence with drafts takes several: its rows are drawn one
// after another while each drawn token is the draft.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/threads/thread_pool.h"
#include "base/try.h"
#include "kernels/kernel_device.h"
#include "serve/engine/engine.h"

namespace moracle::serve {
namespace {

// Why nothing was drawn. `logits`: of the model, before edits.
int32_t why_nothing(std::span<const float> logits) {
  const auto is_bad = [](float logit) {
    return std::isnan(logit) || logit == std::numeric_limits<float>::infinity();
  };
  const bool is_finite =
      std::none_of(logits.begin(), logits.end(), is_bad) &&
      std::any_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
  return is_finite ? kAllForbidden : kNothingDrawn;
}

}  // namespace

Status Engine::sample_next(std::span<const Chunk> chunks) {
  std::vector<SequenceRows> pending;  // their rows follow one another from `first` on
  int64_t row = 0, first = 0, num_rows = 0;
  bool edited = false;  // whether the pending sequences edit their logits
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
    if (sequence.needs_own_row()) {
      MORACLE_CHECK(sample_rows(last, {{chunk.id, 0, chunk.drafts}}));
      continue;
    }
    const bool is_edited = !sequence.editor.changes_nothing();
    const int64_t wanted = 1 + chunk.drafts;
    if (num_rows + wanted > Model::kMaxLogitRows || first + num_rows != last || edited != is_edited)
      MORACLE_CHECK(sample_pending());
    if (pending.empty()) {
      first = last;
      num_rows = 0;
    }
    edited = is_edited;
    pending.push_back({chunk.id, num_rows, chunk.drafts});
    num_rows += wanted;
  }
  MORACLE_CHECK(sample_pending());
  return settle_drafts(chunks);
}

// The rows of these sequences follow one another from `first` on, in the same form: all logits of
// a row if an edit, a grammar or scores need them.
Status Engine::sample_rows(int64_t first, std::vector<SequenceRows> sequences) {
  int64_t num_rows = 0, candidates = 1;
  bool all = leader_.is_spread();
  for (const SequenceRows& one : sequences) {
    const Sequence& sequence = sequences_.at(one.id);
    num_rows += 1 + one.drafts;
    const int64_t needs = sequence.sampler.candidates(model_.vocab_size());
    all = all || needs == 0 || sequence.needs_own_row() || !sequence.editor.changes_nothing();
    candidates = std::max(candidates, needs);
  }
  MORACLE_TRY(const RowLogits rows,
              RowLogits::read(leader_, model_.vocab_size(), first, num_rows, all ? 0 : candidates));
  ThreadPool& threads = kernel_device(model_.device()).host_threads();
  while (!sequences.empty()) {
    const auto count = static_cast<int64_t>(sequences.size());
    std::vector<int32_t> tokens(sequences.size());
    std::vector<std::vector<TokenScore>> scores(sequences.size());
    const auto draw_all = [&](int64_t begin, int64_t end) {
      std::vector<float> edited;
      for (int64_t i = begin; i < end; ++i) {
        Sequence& sequence = sequences_.at(sequences[i].id);
        if (sequence.needs_own_row()) continue;
        std::span<const float> one = rows.all(sequences[i].row);
        if (!sequence.editor.changes_nothing()) {
          edited.assign(one.begin(), one.end());
          sequence.editor.apply(edited);
          one = edited;
        }
        tokens[i] = sequence.sampler.draw(one).value_or(kNothingDrawn);
        if (tokens[i] == kNothingDrawn) tokens[i] = why_nothing(rows.all(sequences[i].row));
      }
    };
    if (rows.has_all()) threads.split(count, draw_all);
    for (int64_t i = 0; i < count; ++i) {
      Sequence& sequence = sequences_.at(sequences[i].id);
      if (sequence.needs_own_row()) {
        MORACLE_TRY(tokens[i], draw_own_row(rows, first, sequences[i], scores[i]));
      } else if (!rows.has_all()) {
        MORACLE_TRY(tokens[i], rows.draw(leader_, sequences[i].row, sequence.sampler));
      }
    }
    profiler_.end_on_device("sampling");
    std::vector<SequenceRows> next;
    for (int64_t i = 0; i < count; ++i) {
      if (take_drawn(sequences[i], tokens[i], std::move(scores[i]))) next.push_back(sequences[i]);
    }
    sequences = std::move(next);
    profiler_.end("scheduling");
  }
  return {};
}

// A grammar, a budget or scores: they need the row's logits before and after edits. A sequence
// whose edits fail ends, and its token counts no more.
Result<int32_t> Engine::draw_own_row(const RowLogits& rows, int64_t first, const SequenceRows& at,
                                     std::vector<TokenScore>& scores) {
  Sequence& sequence = sequences_.at(at.id);
  std::span<const float> logits;
  if (rows.has_all()) {
    logits = rows.all(at.row);
  } else {
    MORACLE_TRY(logits, leader_.logits(first + at.row, 1));
  }
  std::span<const float> all = logits;
  if (sequence.edits()) {
    edited_.assign(logits.begin(), logits.end());
    if (const Status edited = sequence.edit(edited_); !edited) {
      // The vocabulary has no token that the grammar allows.
      const bool is_forbidden = edited.error().kind == ErrorKind::kUnsupported;
      end(at.id, {.finish = is_forbidden ? Finish::kForbidden : Finish::kFailed,
                  .message = edited.error().to_string()});
      return kNothingDrawn;
    }
    all = edited_;
  }
  int32_t token = sequence.sampler.draw(all).value_or(kNothingDrawn);
  if (token == kNothingDrawn) token = why_nothing(logits);
  if (sequence.job.num_top && token >= 0)
    scores.push_back(scorer_.score(logits, token, *sequence.job.num_top));
  return token;
}

// True if the token is an accepted draft: the sequence then draws from its next row.
bool Engine::take_drawn(SequenceRows& at, int32_t token, std::vector<TokenScore> scores) {
  const auto found = sequences_.find(at.id);
  if (found == sequences_.end()) return false;
  const Sequence& sequence = found->second;
  const bool accepts = at.drafts > 0 && token == sequence.drafts[static_cast<size_t>(at.accepted)];
  take_token(at.id, token, std::move(scores), accepts);
  const auto still = sequences_.find(at.id);
  if (!accepts || still == sequences_.end()) return false;
  still->second.accepted = ++at.accepted;
  ++at.row;
  --at.drafts;
  return true;
}

}  // namespace moracle::serve
