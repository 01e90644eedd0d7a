// Messages of a conversation, rendered into prompts by the model's chat template.
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
  /// from that file. Errors: those of both files; a template without tools.
  static Result<ChatHistory> open(const std::string& folder,
                                  const std::optional<std::string>& system,
                                  const std::string& tools);

  /// Errors: a text that is not UTF-8.
  Status ask(const std::string& text);
  void answer(const std::string& text, const std::vector<serve::ToolCall>& calls);
  /// Adds the result of a tool call of the last answer. Errors: a text that is not UTF-8.
  Status give_result(const serve::ToolCall& call, const std::string& text);
  /// Drops the messages after the first `count`, but keeps the system message.
  void shrink(size_t count);
  size_t size() const { return messages_.size(); }

  /// Renders the conversation and the start of the next answer. Errors: those of the template.
  Result<std::string> prompt() const;
  const serve::OfferedTools& offered() const { return offered_; }
  /// Format of tool calls; null: no tools, or a template in an unknown format.
  const serve::ToolFormat* format() const { return dialect_.format; }

 private:
  explicit ChatHistory(ChatTemplate chat) : chat_(std::move(chat)) {}
  Status offer(const std::string& file);

  using Json = nlohmann::ordered_json;
  ChatTemplate chat_;
  Json messages_ = Json::array();
  std::string tools_;  // tools as JSON
  serve::OfferedTools offered_;
  serve::ToolDialect dialect_;
};

}  // namespace moracle::cli
