// Streaming parser: separates the reasoning at the start of an answer from its text.
#pragma once

#include <string>

#include "serve/reasoning/reasoning_format.h"

namespace moracle::serve {

class ReasoningParser {
 public:
  struct Delta {
    std::string reasoning, text;
  };

  /// `is_open`: the prompt has opened the reasoning.
  ReasoningParser(const ReasoningFormat& format, bool is_open)
      : format_(&format), state_(is_open ? State::kReasoning : State::kStart) {}

  /// Adds text, and returns what is decided. Drops white space around the tags.
  Delta push(std::string_view text);
  /// Returns the rest.
  Delta finish();
  bool is_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State { kStart, kReasoning, kAfter, kText };
  bool read_start();
  bool read_reasoning(Delta& delta);

  const ReasoningFormat* format_;
  State state_;
  std::string held_;  // undecided text
  bool has_begun_ = false;
};

}  // namespace moracle::serve
