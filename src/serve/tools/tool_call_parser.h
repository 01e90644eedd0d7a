// Separates tool calls from the text of an answer that arrives in pieces.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

class ToolCallParser {
 public:
  struct Delta {
    std::string text;
    std::vector<ToolCall> calls;  ///< with ids
  };

  /// Both must outlive it.
  ToolCallParser(const ToolFormat& format, const OfferedTools& tools)
      : format_(format), tools_(tools) {}

  /// What is known after this piece. A block that holds no valid call stays text. White space
  /// before and after calls is dropped.
  Delta push(std::string_view piece);
  /// The rest. `is_whole`: the model ended the text, so that a last block without end counts.
  Delta finish(bool is_whole);
  bool has_calls() const { return has_calls_; }

 private:
  bool read_text(Delta& delta);
  bool read_block(Delta& delta);
  void add_text(std::string_view text, Delta& delta);
  void take_block(std::string_view block, std::string_view raw, Delta& delta);

  const ToolFormat& format_;
  const OfferedTools& tools_;
  std::string held_;   // text without a decision yet
  std::string space_;  // white space after the text shown so far
  size_t searched_ = 0;
  bool in_block_ = false, has_begun_ = false, has_calls_ = false;
};

}  // namespace moracle::serve
