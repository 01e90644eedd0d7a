// Splits the text of an answer into parts: reasoning, text and tool calls.
#pragma once

#include <optional>

#include "serve/dialects/chat_prompt.h"
#include "serve/reasoning/reasoning_parser.h"
#include "serve/tools/channel_parser.h"
#include "serve/tools/tool_call_parser.h"

namespace moracle::serve {

class AnswerReader {
 public:
  explicit AnswerReader(const AnswerForm& form);

  /// Adds text, and returns what is decided.
  std::vector<AnswerPiece> push(std::string_view text);
  /// Adds the rest to `pieces`. `is_whole`: the model ended the answer.
  void finish(bool is_whole, std::vector<AnswerPiece>& pieces);
  bool has_calls() const;
  /// True after the first call if the answer may hold only one: drop the rest.
  bool is_complete() const { return is_complete_; }
  bool is_reasoning() const;

 private:
  void add_text(std::string_view text, std::vector<AnswerPiece>& pieces);
  void add(std::vector<AnswerPiece>&& more, std::vector<AnswerPiece>& pieces);
  void add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPiece>& pieces);
  void add(ToolCallParser::Delta&& delta, std::vector<AnswerPiece>& pieces);

  std::shared_ptr<const ToolUse> tools_;
  std::optional<ChannelParser> channels_;  // set for GPT-OSS: finds all parts
  std::optional<ReasoningParser> reasoning_;
  std::optional<ToolCallParser> calls_;  // set if the request has tools
  std::optional<AnswerPart::Kind> last_;
  size_t num_calls_ = 0;
  bool is_complete_ = false;
};

}  // namespace moracle::serve
