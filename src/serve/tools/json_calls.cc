#include "serve/tools/json_calls.h"

#include "base/json/json_text.h"
#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

using Calls = std::optional<std::vector<ToolCall>>;

std::optional<ToolCall> named_call(const CallJson& json, const char* key,
                                   const OfferedTools& tools) {
  if (!json.is_object()) return {};
  const auto name = json.find("name");
  const auto arguments = json.find(key);
  if (name == json.end() || !name->is_string() || arguments == json.end()) return {};
  const auto id = json.find("id");
  return make_call(id != json.end() && id->is_string() ? id->get<std::string>() : std::string(),
                   name->get<std::string>(), *arguments, tools);
}

bool add(std::optional<ToolCall> call, std::vector<ToolCall>& calls) {
  if (call) calls.push_back(*std::move(call));
  return call.has_value();
}

Calls some(std::vector<ToolCall> calls) {
  return calls.empty() ? Calls() : Calls(std::move(calls));
}

}  // namespace

Calls parse_named_object(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  const auto json = parse_json(block);
  if (!json || !add(named_call(*json, "arguments", tools), calls)) return {};
  return calls;
}

Calls parse_parameters(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  std::string_view rest = trimmed(block);
  while (!rest.empty()) {
    const size_t length = json_length(rest);
    const auto json = parse_json(rest.substr(0, length));
    if (length == 0 || !json || !add(named_call(*json, "parameters", tools), calls)) return {};
    rest = trimmed(rest.substr(length));
    if (rest.empty()) break;
    // Llama 4 separates calls by nothing.
    if (rest[0] != ';' && rest[0] != '{') return {};
    if (rest[0] == ';') rest = trimmed(rest.substr(1));
  }
  return some(std::move(calls));
}

Calls parse_mistral(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  if (trimmed(block).starts_with('[')) {
    const auto json = parse_json(block);
    if (!json || !json->is_array()) return {};
    for (const CallJson& each : *json) {
      if (!add(named_call(each, "arguments", tools), calls)) return {};
    }
    return some(std::move(calls));
  }
  CallCursor cursor(block);
  do {
    const auto head = cursor.until("[ARGS]");
    if (!head) return {};
    CallCursor name(*head);
    const auto before_id = name.until("[CALL_ID]");
    const auto begin = cursor.rest().find('{');
    if (begin == std::string_view::npos || !trimmed(cursor.rest().substr(0, begin)).empty())
      return {};
    cursor.skip(begin);
    const size_t length = json_length(cursor.rest());
    const auto arguments = parse_json(cursor.rest().substr(0, length));
    if (length == 0 || !arguments) return {};
    cursor.skip(length);
    const std::string id(before_id ? trimmed(name.rest()) : std::string_view());
    if (!add(make_call(id, std::string(trimmed(before_id.value_or(*head))), *arguments, tools),
             calls))
      return {};
  } while (cursor.take("[TOOL_CALLS]"));
  return cursor.at_end() ? some(std::move(calls)) : Calls();
}

// DeepSeek V3 and R1 write the type before the name, and the arguments in a code block.
Calls parse_deepseek(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  CallCursor cursor(block);
  while (cursor.take("<｜tool▁call▁begin｜>")) {
    const auto head = cursor.until("<｜tool▁sep｜>");
    const auto rest = head ? cursor.until("<｜tool▁call▁end｜>") : head;
    if (!rest) return {};
    std::string_view name = *head, arguments = trimmed(*rest);
    constexpr std::string_view kBegin = "\n```json\n", kEnd = "\n```";
    if (const size_t at = arguments.find(kBegin); at != arguments.npos) {
      if (!arguments.ends_with(kEnd)) return {};
      name = arguments.substr(0, at);
      arguments.remove_prefix(at + kBegin.size());
      arguments.remove_suffix(kEnd.size());
    }
    const auto json = parse_json(arguments);
    if (!json || !add(make_call({}, std::string(trimmed(name)), *json, tools), calls)) return {};
  }
  return cursor.at_end() ? some(std::move(calls)) : Calls();
}

// The id is functions.NAME:NUMBER. The template prints it in later prompts.
Calls parse_kimi(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  CallCursor cursor(block);
  while (cursor.take("<|tool_call_begin|>")) {
    const auto head = cursor.until("<|tool_call_argument_begin|>");
    const auto arguments = head ? cursor.until("<|tool_call_end|>") : head;
    if (!arguments) return {};
    const std::string_view id = trimmed(*head);
    std::string_view name = id.substr(0, id.rfind(':'));
    if (name.starts_with("functions.")) name.remove_prefix(sizeof "functions." - 1);
    const auto json = parse_json(*arguments);
    if (!json || !add(make_call(std::string(id), std::string(name), *json, tools), calls))
      return {};
  }
  return cursor.at_end() ? some(std::move(calls)) : Calls();
}

Calls parse_channel_call(std::string_view block, const OfferedTools& tools) {
  CallCursor cursor(block);
  const auto header = cursor.until("<|message|>");
  if (!header) return {};
  const std::string_view name = header->substr(0, header->find_first_of(" <"));
  const auto arguments = parse_json(cursor.rest());
  std::vector<ToolCall> calls;
  if (!arguments || !add(make_call({}, std::string(name), *arguments, tools), calls)) return {};
  return calls;
}

}  // namespace moracle::serve
