#include "models/generation/continuation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "models/decoder/model_state.h"

namespace moracle {
namespace continuation {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace
}  // namespace continuation

Continuation::Continuation(Model& model, KeptSequence& sequence, std::span<const int32_t> prompt,
                           const GenerateOptions& options)
    : model_(model),
      cache_(sequence.cache),
      sampler_(options.sampling),
      editor_(options.edits, prompt, options.stop_ids),
      adapter_(options.adapter),
      stop_ids_(options.stop_ids),
      prompt_size_(static_cast<int64_t>(prompt.size())),
      in_cache_(sequence.ids),
      text_(prompt.begin(), prompt.end()),
      speculation_(options.speculation),
      replays_(ModelAccess::is_recurrent(model)) {}

Status Continuation::begin() {
  MORACLE_TRY(speculation_.drafter, ModelAccess::drafter(model_, speculation_.drafter));
  if (speculation_.drafter != Drafter::kMtp) return {};
  MORACLE_TRY(next_cache_, make_next_token_cache(model_, cache_.capacity()));
  return {};
}

Status Continuation::run_prompt(std::span<const int32_t> tokens) {
  last_ = {static_cast<int64_t>(tokens.size()), 0, cache_.length()};
  MORACLE_CHECK(run(tokens));
  if (next_cache_) MORACLE_CHECK(draft_next(0));
  return {};
}

// The layer reads the hidden states of the last step. Steps without drafts may have left a gap: it
// then begins anew.
Result<std::vector<int32_t>> Continuation::draft_next(int64_t most) {
  if (followed_ < last_.before) {
    MORACLE_CHECK(next_cache_->truncate(0));
    followed_ = last_.before;
  }
  const int64_t end = std::min(last_.before + last_.tokens, static_cast<int64_t>(text_.size()) - 1);
  if (end <= followed_) return std::vector<int32_t>();
  const NextTokenRows rows{&*next_cache_, followed_ - last_.before,
                           std::span(text_).subspan(followed_ + 1, end - followed_), most};
  MORACLE_TRY(std::vector<std::vector<int32_t>> drafts, draft_next_tokens(model_, {&rows, 1}));
  followed_ = end;
  return std::move(drafts[0]);
}

Status Continuation::run(std::span<const int32_t> tokens) {
  const Model::Step step{tokens, &cache_, adapter_};
  MORACLE_CHECK(model_.forward({&step, 1}));
  in_cache_.insert(in_cache_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<std::vector<int32_t>> Continuation::next(std::span<const int32_t> tokens,
                                                std::span<const int32_t> drafts, bool draws,
                                                bool reads) {
  const DeviceLock lock = model_.device().lock();
  const auto start = std::chrono::steady_clock::now();
  last_ = {static_cast<int64_t>(tokens.size() + drafts.size()), static_cast<int64_t>(drafts.size()),
           cache_.length()};
  std::vector<int32_t> all;
  if (!drafts.empty()) {
    all.assign(tokens.begin(), tokens.end());
    all.insert(all.end(), drafts.begin(), drafts.end());
    tokens = all;
  }
  MORACLE_CHECK(run(tokens));
  if (!draws && !reads) return std::vector<int32_t>();
  MORACLE_TRY(std::vector<int32_t> ids, draw(drafts, last_.tokens - last_.drafted - 1, draws));
  last_.seconds = continuation::seconds_since(start) + std::exchange(draft_seconds_, 0);
  return ids;
}

Result<std::vector<int32_t>> Continuation::draw(std::span<const int32_t> drafts, int64_t first,
                                                bool draws) {
  const int64_t vocab_size = model_.vocab_size();
  // Edits change any logit. Every rank takes part in each read of a divided output, so read all
  // at once where an excluded id may need them.
  const bool all = !editor_.changes_nothing() ||
                   (ModelAccess::state(model_).output_shares.size > 1 && sampler_.has_exclusions());
  MORACLE_TRY(const RowLogits rows,
              RowLogits::read(model_, vocab_size, first, static_cast<int64_t>(drafts.size()) + 1,
                              all ? 0 : sampler_.candidates(vocab_size)));
  std::vector<int32_t> ids;
  while (draws) {
    const size_t row = ids.size();
    MORACLE_TRY(const int32_t id, draw_row(rows, static_cast<int64_t>(row)));
    ids.push_back(id);
    if (id == kNothingDrawn || row == drafts.size() || id != drafts[row]) break;
    if (std::find(stop_ids_.begin(), stop_ids_.end(), id) != stop_ids_.end()) break;
    editor_.add(id);  // the next row depends on it
    ++last_.edited;
  }
  return ids;
}

Result<int32_t> Continuation::draw_row(const RowLogits& rows, int64_t row) {
  if (editor_.changes_nothing() || !rows.has_all()) return rows.draw(model_, row, sampler_);
  const std::span<const float> logits = rows.all(row);
  const auto is_finite = [](float logit) { return std::isfinite(logit); };
  were_finite_ = std::all_of(logits.begin(), logits.end(), is_finite);
  edited_.assign(logits.begin(), logits.end());
  if (were_finite_) editor_.apply(edited_);
  return sampler_.draw(edited_).value_or(kNothingDrawn);
}

Status Continuation::take(std::span<const int32_t> ids) {
  const auto text = static_cast<int64_t>(text_.size());
  const auto count = static_cast<int64_t>(ids.size());
  text_.insert(text_.end(), ids.begin(), ids.end());
  if (last_.drafted > 0) {
    ++counts_.steps;
    counts_.drafted += last_.drafted;
    counts_.accepted += count - 1;
  }
  for (const int32_t id : ids.subspan(std::min(last_.edited, ids.size()))) editor_.add(id);
  const int64_t kept = text + count - 1;  // the last one has not been run
  if (kept < cache_.length()) {
    // Recurrent layers keep the state from before the step: its tokens are run again.
    MORACLE_CHECK(cache_.truncate(replays_ ? last_.before : kept));
    in_cache_.resize(static_cast<size_t>(cache_.length()));
  }
  if (speculation_.drafter == Drafter::kNone) return {};
  if (text == prompt_size_) return {};  // the prompt's step tells nothing about decode steps
  costs_.measured(last_.tokens, last_.seconds);
  const double plain = costs_.seconds(1);
  control_.stepped(last_.drafted, count - 1, costs_.seconds(last_.tokens) / plain - 1);
  counts_.saved_seconds = control_.gained() * plain;
  return {};
}

Result<std::vector<int32_t>> Continuation::drafts(int64_t left) {
  std::vector<int32_t> ids;
  if (speculation_.drafter == Drafter::kNone) return ids;
  const auto text = static_cast<int64_t>(text_.size());
  const auto known = static_cast<int64_t>(waiting().size());
  int64_t most =
      std::min({speculation_.max_drafts, left - 1, cache_.capacity() - text,
                model_.max_num_tokens() - known, ModelAccess::most_drafts(model_, text)});
  // A step without drafts ends the replays of a recurrent state.
  if (known > Speculation::kMaxDrafts) return ids;
  if (speculation_.adaptive) {
    most = control_.wanted(
        costs_, {.tokens = known, .sequences = 1, .known = known, .replays = replays_}, most);
  }
  if (most < 1) return ids;
  const auto start = std::chrono::steady_clock::now();
  if (next_cache_) {
    MORACLE_TRY(ids, draft_next(most));
  } else {
    ngrams_.follow(text_);
    ngrams_.draft(most, ids);
  }
  draft_seconds_ = continuation::seconds_since(start);
  return ids;
}

Error Continuation::explain_nothing(std::span<const int32_t> ids) {
  std::vector<int32_t> text = text_;
  text.insert(text.end(), ids.begin(), ids.end());
  if (were_finite_) {
    return Error{ErrorKind::kInvalidArgument, "", "suppress_tokens",
                 "at least one token that may follow",
                 str("this list, bad_words_ids, no_repeat_ngram_size and min_tokens forbid all "
                     "tokens at position ",
                     text.size())};
  }
  const DeviceLock lock = model_.device().lock();
  return explain_non_finite(model_, text, cache_, adapter_);
}

}  // namespace moracle
