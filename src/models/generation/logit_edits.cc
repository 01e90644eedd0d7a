#include "models/generation/logit_edits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "models/generation/dry.h"

namespace moracle {
namespace {

void forbid(std::span<float> logits, std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (static_cast<size_t>(id) < logits.size())
      logits[id] = -std::numeric_limits<float>::infinity();
  }
}

bool ends_with(std::span<const int32_t> tokens, std::span<const int32_t> run) {
  return tokens.size() >= run.size() &&
         std::equal(run.begin(), run.end(), tokens.end() - static_cast<ptrdiff_t>(run.size()));
}

}  // namespace

bool LogitEdits::changes_nothing() const {
  return bias.empty() && repetition_penalty == 1 && frequency_penalty == 0 &&
         presence_penalty == 0 && dry.multiplier == 0 && no_repeat_ngram_size == 0 &&
         bad_words_ids.empty() && min_tokens == 0 && min_length == 0 && suppress_tokens.empty() &&
         begin_suppress_tokens.empty();
}

Status check(const LogitEdits& edits) {
  const auto wrong = [](const char* option, const char* need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", option, need, "it is " + fact};
  };
  if (!(edits.repetition_penalty > 0) || !std::isfinite(edits.repetition_penalty))
    return wrong("repetition_penalty", "a number above 0", str(edits.repetition_penalty));
  MORACLE_CHECK(check(edits.dry));
  const std::pair<const char*, int64_t> sizes[] = {
      {"no_repeat_ngram_size", edits.no_repeat_ngram_size},
      {"min_tokens", edits.min_tokens},
      {"min_length", edits.min_length}};
  for (const auto& [option, size] : sizes) {
    if (size < 0) return wrong(option, "at least 0", str(size));
  }
  for (const std::vector<int32_t>& run : edits.bad_words_ids) {
    if (run.empty())
      return wrong("bad_words_ids", "lists of at least one token id", "an empty one");
  }
  return {};
}

// transformers ignores a bad word that is an end-of-text token.
LogitEditor::LogitEditor(LogitEdits edits, std::span<const int32_t> prompt,
                         std::span<const int32_t> stop_ids)
    : edits_([&] {
        std::erase_if(edits.bad_words_ids, [&](const std::vector<int32_t>& run) {
          return run.size() == 1 &&
                 std::find(stop_ids.begin(), stop_ids.end(), run[0]) != stop_ids.end();
        });
        return std::move(edits);
      }()),
      stop_ids_(stop_ids.begin(), stop_ids.end()),
      prompt_size_(prompt.size()),
      tokens_(prompt.begin(), prompt.end()) {
  if (edits_.repetition_penalty != 1) in_prompt_.insert(prompt.begin(), prompt.end());
}

void LogitEditor::add(int32_t id) {
  tokens_.push_back(id);
  ++counts_[id];
}

bool LogitEditor::forbids_stops() const {
  const size_t least = std::max(prompt_size_ + static_cast<size_t>(edits_.min_tokens),
                                static_cast<size_t>(edits_.min_length));
  return tokens_.size() < least && !stop_ids_.empty();
}

bool LogitEditor::changes_nothing() const {
  return edits_.bias.empty() && edits_.repetition_penalty == 1 && edits_.frequency_penalty == 0 &&
         edits_.presence_penalty == 0 && edits_.dry.multiplier == 0 &&
         edits_.no_repeat_ngram_size == 0 && edits_.bad_words_ids.empty() &&
         edits_.suppress_tokens.empty() && (edits_.begin_suppress_tokens.empty() || !is_first()) &&
         !forbids_stops();
}

void LogitEditor::apply(std::span<float> logits) const {
  penalize(logits);
  apply_dry(edits_.dry, tokens_, logits);
  if (edits_.no_repeat_ngram_size > 0) forbid_repeats(logits);
  forbid_words(logits);
  if (forbids_stops()) forbid(logits, stop_ids_);
  forbid(logits, edits_.suppress_tokens);
  if (is_first()) forbid(logits, edits_.begin_suppress_tokens);
}

void LogitEditor::penalize(std::span<float> logits) const {
  const auto size = static_cast<int32_t>(logits.size());
  for (const auto& [id, bias] : edits_.bias) {
    if (id < size) logits[id] += bias;
  }
  const auto repeat = [&](int32_t id) {
    if (id >= size) return;
    float& logit = logits[id];
    logit = logit > 0 ? logit / edits_.repetition_penalty : logit * edits_.repetition_penalty;
  };
  if (edits_.repetition_penalty != 1) {
    for (const int32_t id : in_prompt_) repeat(id);
    for (const auto& [id, count] : counts_) {
      if (!in_prompt_.contains(id)) repeat(id);
    }
  }
  for (const auto& [id, count] : counts_) {
    if (id < size)
      logits[id] -= edits_.frequency_penalty * static_cast<float>(count) + edits_.presence_penalty;
  }
}

// Forbids each token that followed an earlier occurrence of the last size - 1 tokens.
void LogitEditor::forbid_repeats(std::span<float> logits) const {
  const auto before = static_cast<size_t>(edits_.no_repeat_ngram_size) - 1;
  if (tokens_.size() <= before) return;
  const auto last = tokens_.end() - static_cast<ptrdiff_t>(before);
  for (auto at = tokens_.begin(); at + static_cast<ptrdiff_t>(before) != tokens_.end(); ++at) {
    if (std::equal(last, tokens_.end(), at)) forbid(logits, {&at[before], 1});
  }
}

void LogitEditor::forbid_words(std::span<float> logits) const {
  for (const std::vector<int32_t>& run : edits_.bad_words_ids) {
    const std::span<const int32_t> before(run.data(), run.size() - 1);
    if (ends_with(tokens_, before)) forbid(logits, {&run.back(), 1});
  }
}

Result<std::vector<std::vector<int32_t>>> runs_of_word(const Tokenizer& tokenizer,
                                                       const std::string& word) {
  const std::string plain = word.substr(std::min(word.find_first_not_of(' '), word.size()));
  MORACLE_TRY(std::vector<int32_t> alone, tokenizer.encode(plain));
  if (alone.empty())
    return Error{ErrorKind::kInvalidArgument, "", "bad_words", "words with at least one token",
                 str("it has ", quote(word))};
  MORACLE_TRY(std::vector<int32_t> behind, tokenizer.encode(" " + plain));
  // Where the space is a token of its own, the first run forbids the second as well.
  const bool is_other = !ends_with(behind, alone);
  std::vector<std::vector<int32_t>> runs = {std::move(alone)};
  if (is_other) runs.push_back(std::move(behind));
  return runs;
}

}  // namespace moracle
