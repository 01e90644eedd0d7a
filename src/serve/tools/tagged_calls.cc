#include "serve/tools/tagged_calls.h"

#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

using Calls = std::optional<std::vector<ToolCall>>;

struct Argument {
  std::string_view begin, between, end;  // tags around the key and the value
};

// Reads all arguments. Empty: an argument lacks its closing tag.
std::optional<CallJson> read_arguments(CallCursor& cursor, const Argument& tags,
                                       const std::string& name, const OfferedTools& tools) {
  CallJson arguments = CallJson::object();
  while (cursor.take(tags.begin)) {
    const auto key = cursor.until(tags.between);
    const auto value = key ? cursor.until(tags.end) : key;
    if (!value) return {};
    const std::string parameter(trimmed(*key));
    arguments[parameter] = tagged_value(*value, tools.is_text(name, parameter), /*has_lines=*/true);
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

CallJson tagged_value(std::string_view text, bool is_text, bool has_lines) {
  if (has_lines && text.starts_with('\n')) text.remove_prefix(1);
  if (has_lines && text.ends_with('\n')) text.remove_suffix(1);
  if (!is_text) {
    if (auto json = parse_json(text)) return *std::move(json);
  }
  return std::string(text);
}

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
    arguments[parameter] = tagged_value(*value, tools.is_text(name, parameter), false);
  }
  auto call = make_call({}, name, arguments, tools);
  if (!call || !cursor.at_end()) return {};
  return std::vector<ToolCall>{*std::move(call)};
}

// The tag tells strings from JSON.
Calls parse_dsml(std::string_view block, const OfferedTools& tools) {
  std::vector<ToolCall> calls;
  CallCursor cursor(block);
  while (cursor.take("<｜DSML｜invoke name=\"")) {
    const auto name = cursor.until("\">");
    if (!name) return {};
    CallJson arguments = CallJson::object();
    while (cursor.take("<｜DSML｜parameter name=\"")) {
      const auto key = cursor.until("\" string=\"");
      const auto type = key ? cursor.until("\">") : key;
      const auto value = type ? cursor.until("</｜DSML｜parameter>") : type;
      if (!value) return {};
      arguments[std::string(*key)] = tagged_value(*value, *type == "true", false);
    }
    if (!cursor.take("</｜DSML｜invoke>")) return {};
    auto call = make_call({}, std::string(*name), arguments, tools);
    if (!call) return {};
    calls.push_back(*std::move(call));
  }
  if (calls.empty() || !cursor.at_end()) return {};
  return calls;
}

}  // namespace moracle::serve
