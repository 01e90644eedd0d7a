#pragma once

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "moracle/model.h"

namespace moracle {

/// Applies LogitEdits to the logits of one sequence. The result depends on no other sequence.
class LogitEditor {
 public:
  /// `stop_ids` are those that min_tokens and min_length forbid.
  LogitEditor(LogitEdits edits, std::span<const int32_t> prompt, std::span<const int32_t> stop_ids);
  /// Whether the next logits stay as they are.
  bool changes_nothing() const;
  /// Counts a generated token.
  void add(int32_t id);
  /// Changes logits [vocab_size] in place. Forbidden ids get negative infinity.
  void apply(std::span<float> logits) const;

 private:
  bool forbids_stops() const;
  bool is_first() const { return tokens_.size() == prompt_size_; }
  void penalize(std::span<float> logits) const;
  void forbid_repeats(std::span<float> logits) const;
  void forbid_words(std::span<float> logits) const;

  const LogitEdits edits_;
  const std::vector<int32_t> stop_ids_;
  const size_t prompt_size_;
  std::vector<int32_t> tokens_;  // prompt and generated
  std::unordered_set<int32_t> in_prompt_;
  std::unordered_map<int32_t, int64_t> counts_;  // generated
};

/// The runs of tokens that write a word at the start of a text and after a space, for
/// LogitEdits::bad_words_ids. Errors: those of the tokenizer; a word without tokens.
Result<std::vector<std::vector<int32_t>>> runs_of_word(const Tokenizer& tokenizer,
                                                       const std::string& word);

}  // namespace moracle
