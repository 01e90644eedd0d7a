// Counts the tokens of a sequence's reasoning, and closes it at a budget with the model's own
// tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moracle::serve {

struct ReasoningLimit {
  std::string open, close;           ///< tags around the reasoning
  std::vector<int32_t> closing_ids;  ///< what closes it
  bool is_open = false;              ///< the prompt has opened it
  int64_t max_tokens = 0;
};

class ReasoningBudget {
 public:
  explicit ReasoningBudget(ReasoningLimit limit)
      : limit_(std::move(limit)), is_open_(limit_.is_open) {}

  /// Adds a token and its text.
  void add(int32_t id, std::string_view text);
  /// True if the budget is spent: the next token closes the reasoning.
  bool forces() const { return is_open_ && num_tokens_ >= limit_.max_tokens; }
  /// The only token that may come next. Call only if forces().
  int32_t forced_id() const { return limit_.closing_ids[num_forced_]; }

 private:
  ReasoningLimit limit_;
  bool is_open_, has_begun_ = false;
  std::string text_;  // text before the tag that is looked for
  int64_t num_tokens_ = 0;
  size_t num_forced_ = 0;
};

}  // namespace moracle::serve
