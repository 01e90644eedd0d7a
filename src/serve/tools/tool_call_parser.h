// Streaming parser: separates tool calls from the text of an answer.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

class ToolCallParser {
 public:
  struct Delta {
    std::string text;
    std::vector<ToolCall> calls;  ///< calls, with ids
  };

  /// Both must outlive this object.
  ToolCallParser(const ToolFormat& format, const OfferedTools& tools)
      : format_(format), tools_(tools) {}

  /// Adds text, and returns what is decided. A block without a valid call stays text. Drops white
  /// space around calls.
  Delta push(std::string_view piece);
  /// Returns the rest. `is_whole`: the model ended the answer, so a last block without a closing
  /// tag counts.
  Delta finish(bool is_whole);
  bool has_calls() const { return has_calls_; }

 private:
  bool read_text(Delta& delta);
  bool read_block(Delta& delta);
  void add_text(std::string_view text, Delta& delta);
  void take_block(std::string_view block, std::string_view raw, Delta& delta);

  const ToolFormat& format_;
  const OfferedTools& tools_;
  std::string held_;   // undecided text
  std::string space_;  // white space after the emitted text
  size_t searched_ = 0;
  bool in_block_ = false, has_begun_ = false, has_calls_ = false;
};

}  // namespace moracle::serve
