// The text of an answer whose ids arrive one by one, up to a stop string, with tool calls taken
// out.
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
  /// Both must outlive it. Without a history, all text is shown.
  AnswerText(const Tokenizer& tokenizer, const ChatHistory* history, std::vector<std::string> stops)
      : stream_(tokenizer, std::move(stops)) {
    if (!history || !history->format()) return;
    reader_.emplace(*history->format(), history->offered());
    shown_ids_ = serve::special_tags(*history->format(), tokenizer);
  }

  Status follow(std::span<const int32_t> prompt) { return stream_.follow(prompt); }
  /// The text that this id completes.
  Result<std::string> push(int32_t id) {
    const bool is_tag = std::find(shown_ids_.begin(), shown_ids_.end(), id) != shown_ids_.end();
    MORACLE_TRY(std::string text, stream_.push(id, /*skip_special=*/!is_tag));
    return reader_ ? take(reader_->push(text)) : text;
  }
  /// Whether the text has reached a stop string.
  bool stopped() const { return stream_.stopped(); }
  /// The rest. `is_whole`: the model ended the answer.
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
