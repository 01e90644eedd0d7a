// Splits the text of an answer into parts: text and tool calls.
#pragma once

#include <optional>

#include "serve/dialects/chat_prompt.h"
#include "serve/tools/tool_call_parser.h"

namespace moracle::serve {

/// A part of an answer.
struct AnswerPart {
  enum class Kind { kReasoning, kText, kCall };
  Kind kind = Kind::kText;
  std::string text;      ///< of a call: its arguments, a JSON object
  std::string id, name;  ///< of a call
};

/// New text of a part.
struct AnswerPiece {
  AnswerPart::Kind kind = AnswerPart::Kind::kText;
  std::string text;
  std::string id, name;  ///< of a call that begins
  bool begins = false;   ///< starts a new part; else `text` continues the last one
};

class AnswerReader {
 public:
  explicit AnswerReader(std::shared_ptr<const ToolUse> tools);

  /// Adds text, and returns what is decided.
  std::vector<AnswerPiece> push(std::string_view text);
  /// Adds the rest to `pieces`. `is_whole`: the model ended the answer.
  void finish(bool is_whole, std::vector<AnswerPiece>& pieces);
  bool has_calls() const { return calls_ && calls_->has_calls(); }
  /// True after the first call if the answer may hold only one: drop the rest.
  bool is_complete() const { return is_complete_; }
  bool is_reasoning() const { return false; }

 private:
  void add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPiece>& pieces);
  void add(ToolCallParser::Delta&& delta, std::vector<AnswerPiece>& pieces);

  std::shared_ptr<const ToolUse> tools_;
  std::optional<ToolCallParser> calls_;  // set if the request has tools
  std::optional<AnswerPart::Kind> last_;
  bool is_complete_ = false;
};

}  // namespace moracle::serve
