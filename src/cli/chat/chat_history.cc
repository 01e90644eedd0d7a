#include "chat/chat_history.h"

#include <algorithm>

#include "base/json/json_text.h"
#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "text_file.h"

namespace moracle::cli {

namespace {

Status check_utf8(const std::string& text, const char* place) {
  const auto at = first_invalid_utf8(text);
  if (!at) return {};
  return Error{ErrorKind::kInvalidArgument, "", place, "valid UTF-8",
               str("byte ", *at, " is not part of a character")};
}

}  // namespace

Result<ChatHistory> ChatHistory::open(const std::string& folder,
                                      const std::optional<std::string>& system,
                                      const std::string& tools) {
  MORACLE_TRY(ChatTemplate chat, ChatTemplate::open(folder));
  ChatHistory history(std::move(chat));
  if (system) MORACLE_CHECK(check_utf8(*system, "--system"));
  if (system) history.messages_.push_back({{"role", "system"}, {"content", *system}});
  if (!tools.empty()) MORACLE_CHECK(history.offer(tools));
  return history;
}

Status ChatHistory::offer(const std::string& file) {
  MORACLE_TRY(tools_, read_text(file, "--tools"));
  MORACLE_TRY(const nlohmann::json json, parse_json(tools_, file));
  if (!json.is_array() || json.empty()) {
    return Error{ErrorKind::kBadFile, file, "", "a JSON array of functions",
                 "it is another value, or empty"};
  }
  MORACLE_TRY(offered_, serve::OfferedTools::read(JsonField(json, file)));
  dialect_ = serve::find_dialect(chat_);
  if (dialect_.takes_tools) return {};
  return Error{ErrorKind::kUnsupported, "", "--tools", "a model whose chat template supports tools",
               "this model's template ignores them"};
}

Status ChatHistory::ask(const std::string& text) {
  MORACLE_CHECK(check_utf8(text, "prompt"));
  messages_.push_back({{"role", "user"}, {"content", text}});
  return {};
}

void ChatHistory::answer(const std::string& text, const std::vector<serve::ToolCall>& calls) {
  Json message = {{"role", "assistant"}, {"content", text}};
  for (const serve::ToolCall& call : calls) {
    Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    if (dialect_.arguments_as_text) arguments = call.arguments;
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  if (!calls.empty() && text.empty() && !dialect_.empty_content) message["content"] = nullptr;
  messages_.push_back(std::move(message));
}

Status ChatHistory::give_result(const serve::ToolCall& call, const std::string& text) {
  MORACLE_CHECK(check_utf8(text, "result"));
  messages_.push_back(
      {{"role", "tool"}, {"tool_call_id", call.id}, {"name", call.name}, {"content", text}});
  return {};
}

void ChatHistory::shrink(size_t count) {
  const bool has_system = !messages_.empty() && messages_[0]["role"] == "system";
  const size_t kept = std::max<size_t>(count, has_system ? 1 : 0);
  while (messages_.size() > kept) messages_.erase(messages_.size() - 1);
}

Result<std::string> ChatHistory::prompt() const {
  return chat_.render_json({messages_.dump(), tools_, ""});
}

}  // namespace moracle::cli
