#include "serve/tools/tagged_calls.h"

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

using Calls = std::optional<std::vector<ToolCall>>;

struct Argument {
  std::string_view begin, between, end;  // tags around the key and the value
};

// Strings are unquoted; all other values are JSON.
CallJson value_of(std::string_view text, bool is_text) {
  if (!is_text) {
    if (auto json = parse_json(text)) return *std::move(json);
  }
  return std::string(text);
}

// Reads all arguments. Empty: an argument lacks its closing tag.
std::optional<CallJson> read_arguments(CallCursor& cursor, const Argument& tags,
                                       const std::string& name, const OfferedTools& tools) {
  CallJson arguments = CallJson::object();
  while (cursor.take(tags.begin)) {
    const auto key = cursor.until(tags.between);
    const auto value = key ? cursor.until(tags.end) : key;
    if (!value) return {};
    const std::string parameter(trimmed(*key));
    std::string_view text = *value;
    // Strip one line break on each side: it belongs to the tags.
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    arguments[parameter] = value_of(text, tools.is_text(name, parameter));
  }
  return arguments;
}

// Parses calls of the form `begin` NAME `middle` arguments `end`.
Calls read_calls(std::string_view block, std::string_view begin, std::string_view middle,
                 std::string_view end, const Argument& tags, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  CallCursor cursor(block);
  while (cursor.take(begin)) {
    const auto named = cursor.until(middle);
    if (!named) return {};
    std::string name(trimmed(*named));
    const auto arguments = read_arguments(cursor, tags, name, tools);
    if (!arguments || !cursor.take(end)) return {};
    auto call = make_call({}, std::move(name), *arguments, tools);
    if (!call) return {};
    calls.push_back(*std::move(call));
  }
  if (calls.empty() || !cursor.at_end()) return {};
  return calls;
}

}  // namespace

Calls parse_qwen_coder(std::string_view block, const OfferedTools& tools) {
  return read_calls(block, "<function=", ">", "</function>", {"<parameter=", ">", "</parameter>"},
                    tools);
}

Calls parse_minimax(std::string_view block, const OfferedTools& tools) {
  return read_calls(block, "<invoke name=\"", "\">", "</invoke>",
                    {"<parameter name=\"", "\">", "</parameter>"}, tools);
}

Calls parse_glm(std::string_view block, const OfferedTools& tools) {
  const std::string name(trimmed(block.substr(0, block.find("<arg_key>"))));
  CallCursor cursor(block);
  if (!cursor.take(name)) return {};
  // Key and value have separate tags, with at most a line break between them.
  CallJson arguments = CallJson::object();
  while (cursor.take("<arg_key>")) {
    const auto key = cursor.until("</arg_key>");
    if (!key || !cursor.take("<arg_value>")) return {};
    const auto value = cursor.until("</arg_value>");
    if (!value) return {};
    const std::string parameter(trimmed(*key));
    arguments[parameter] = value_of(*value, tools.is_text(name, parameter));
  }
  auto call = make_call({}, name, arguments, tools);
  if (!call || !cursor.at_end()) return {};
  return std::vector<ToolCall>{*std::move(call)};
}

}  // namespace moracle::serve
