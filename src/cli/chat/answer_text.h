// Decodes a streamed answer up to a stop string, and separates its tool calls.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/try.h"
#include "chat/chat_history.h"
#include "serve/tools/tool_call_parser.h"
#include "text/stop_strings.h"

namespace moracle::cli {

class AnswerText {
 public:
  /// Both must outlive this object. Without a history, tool calls stay in the text.
  AnswerText(const Tokenizer& tokenizer, const ChatHistory* history, std::vector<std::string> stops)
      : stream_(tokenizer, std::move(stops)) {
    if (!history || !history->format()) return;
    reader_.emplace(*history->format(), history->offered());
    shown_ids_ = serve::special_tags(*history->format(), tokenizer);
  }

  Status follow(std::span<const int32_t> prompt) { return stream_.follow(prompt); }
  /// Adds an id, and returns the text that is complete.
  Result<std::string> push(int32_t id) {
    const bool is_tag = std::find(shown_ids_.begin(), shown_ids_.end(), id) != shown_ids_.end();
    MORACLE_TRY(std::string text, stream_.push(id, /*skip_special=*/!is_tag));
    return reader_ ? take(reader_->push(text)) : text;
  }
  /// True after a stop string.
  bool stopped() const { return stream_.stopped(); }
  /// Returns the rest. `is_whole`: the model ended the answer.
  std::string finish(bool is_whole) {
    std::string text = stream_.finish();
    if (!reader_) return text;
    text = take(reader_->push(text));
    return text + take(reader_->finish(is_whole || stopped()));
  }
  const std::vector<serve::ToolCall>& calls() const { return calls_; }

 private:
  std::string take(serve::ToolCallParser::Delta delta) {
    for (serve::ToolCall& call : delta.calls) calls_.push_back(std::move(call));
    return std::move(delta.text);
  }
  StoppingTokenStream stream_;
  std::optional<serve::ToolCallParser> reader_;
  std::vector<int32_t> shown_ids_;
  std::vector<serve::ToolCall> calls_;
};

}  // namespace moracle::cli
