// The messages of a conversation, and the prompt that the model's chat template makes of them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "moracle/text.h"
#include "serve/tools/tool_dialect.h"

namespace moracle::cli {

class ChatHistory {
 public:
  /// Reads the chat template of `folder` and, unless `tools` is empty, a JSON array of functions
  /// from that file. Errors: also a template that shows no tools.
  static Result<ChatHistory> open(const std::string& folder,
                                  const std::optional<std::string>& system,
                                  const std::string& tools);

  /// Errors: a text that is not UTF-8.
  Status ask(const std::string& text);
  void answer(const std::string& text, const std::vector<serve::ToolCall>& calls);
  /// The result of a call of the last answer. Errors: a text that is not UTF-8.
  Status give_result(const serve::ToolCall& call, const std::string& text);
  /// Drops the messages after the first `count`, but never the system message.
  void shrink(size_t count);
  size_t size() const { return messages_.size(); }

  /// The conversation with the start of the next answer. Errors: those of the template.
  Result<std::string> prompt() const;
  const serve::OfferedTools& offered() const { return offered_; }
  /// The form of calls in answers; null: no tools, or the template writes them in an unknown form.
  const serve::ToolFormat* format() const { return dialect_.format; }

 private:
  explicit ChatHistory(ChatTemplate chat) : chat_(std::move(chat)) {}
  Status offer(const std::string& file);

  using Json = nlohmann::ordered_json;
  ChatTemplate chat_;
  Json messages_ = Json::array();
  std::string tools_;  // JSON text
  serve::OfferedTools offered_;
  serve::ToolDialect dialect_;
};

}  // namespace moracle::cli
