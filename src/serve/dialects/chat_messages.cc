#include "serve/dialects/chat_messages.h"

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

void append_text(Json& text, const std::string& more, const char* separator) {
  auto& joined = text.get_ref<std::string&>();
  if (!joined.empty() && !more.empty()) joined += separator;
  joined += more;
}

}  // namespace

std::optional<Json> template_arguments(const Json& given, const ToolDialect& dialect) {
  // Clients send an empty string for functions without parameters.
  if (given.is_null() || given == "" || given == "null")
    return dialect.arguments_as_text ? Json("{}") : Json::object();
  if (given.is_string()) {
    auto parsed = parse_json(given.get_ref<const std::string&>());
    if (!parsed || !parsed->is_object()) return {};
    return dialect.arguments_as_text ? given : *std::move(parsed);
  }
  if (!given.is_object()) return {};
  return dialect.arguments_as_text ? Json(given.dump()) : given;
}

void ChatMessages::add_text(const std::string& role, const std::string& text) {
  if (role == "assistant") return append_text(assistant()["content"], text, "");
  if (role == "system" && messages_.size() == 1 && messages_[0]["role"] == "system")
    return append_text(messages_[0]["content"], text, "\n\n");
  messages_.push_back({{"role", role}, {"content", text}});
}

void ChatMessages::add_reasoning(const std::string& text) {
  // Reasoning after content or calls starts the next message.
  if (ends_with_assistant()) {
    const Json& last = messages_.back();
    if (last["content"] != "" || last.contains("tool_calls"))
      messages_.push_back({{"role", "assistant"}, {"content", ""}});
  }
  Json& message = assistant();
  if (!message.contains("reasoning_content")) message["reasoning_content"] = "";
  append_text(message["reasoning_content"], text, "\n");
}

bool ChatMessages::add_call(const std::string& id, const std::string& name, const Json& arguments) {
  auto shown = template_arguments(arguments, dialect_);
  if (!shown) return false;
  names_[id] = name;
  assistant()["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", *std::move(shown)}}}});
  return true;
}

void ChatMessages::add_result(const std::string& id, const std::string& text) {
  Json message = {{"role", "tool"}, {"tool_call_id", id}, {"content", text}};
  if (const auto name = names_.find(id); name != names_.end()) message["name"] = name->second;
  messages_.push_back(std::move(message));
}

bool ChatMessages::ends_with_assistant() const {
  return !messages_.empty() && messages_.back()["role"] == "assistant";
}

Json& ChatMessages::assistant() {
  if (!ends_with_assistant()) messages_.push_back({{"role", "assistant"}, {"content", ""}});
  return messages_.back();
}

Json ChatMessages::take() {
  for (Json& message : messages_) {
    const bool has_calls_only = message.contains("tool_calls") && message["content"] == "";
    if (has_calls_only && !dialect_.empty_content) message["content"] = nullptr;
  }
  return std::move(messages_);
}

}  // namespace moracle::serve
