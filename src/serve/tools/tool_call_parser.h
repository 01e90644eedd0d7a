// Streaming parser: separates tool calls from the text of an answer.
#pragma once

#include "serve/tools/call_progress.h"

namespace moracle::serve {

class ToolCallParser {
 public:
  struct Delta {
    std::string text;
    std::vector<ToolCall> calls;  ///< calls, with ids
    /// All text and calls, in order; filled only by a parser that streams. `begins` marks the first
    /// piece of a call.
    std::vector<AnswerPiece> pieces;
  };

  /// Both must outlive this object. `streams`: emits arguments before their block is complete. Such
  /// a call stays a call, even if its block turns out to be invalid.
  ToolCallParser(const ToolFormat& format, const OfferedTools& tools, bool streams = false)
      : format_(format), tools_(tools), progress_(format, tools), streams_(streams) {}

  /// Adds text, and returns what is decided. A block without a valid call stays text. Drops white
  /// space around calls.
  Delta push(std::string_view piece);
  /// Returns the rest. `is_whole`: the model ended the answer, so a last block without a closing
  /// tag counts.
  Delta finish(bool is_whole);
  bool has_calls() const { return has_calls_; }
  /// Calls with all arguments.
  size_t num_complete() const { return num_complete_; }

 private:
  bool read_text(Delta& delta);
  bool read_block(Delta& delta);
  void add_text(std::string_view text, Delta& delta);
  void emit(std::string text, Delta& delta);
  void follow_block(Delta& delta);
  void take_block(std::string_view block, std::string_view raw, bool is_whole, Delta& delta);

  const ToolFormat& format_;
  const OfferedTools& tools_;
  std::string held_;   // undecided text
  std::string space_;  // white space after the emitted text
  size_t searched_ = 0;
  CallProgress progress_;  // of the current block
  size_t followed_ = 0;    // bytes of held_ that progress_ has
  size_t num_complete_ = 0;
  const bool streams_;
  bool in_block_ = false, has_begun_ = false, has_calls_ = false;
};

}  // namespace moracle::serve
