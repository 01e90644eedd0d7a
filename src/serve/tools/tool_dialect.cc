#include "serve/tools/tool_dialect.h"

#include "base/text.h"

namespace moracle::serve {
namespace {

constexpr const char* kName = "probed_tool";
const std::string kNoFile;

nlohmann::json probed_tools() {
  return nlohmann::json::array(
      {{{"type", "function"},
        {"function",
         {{"name", kName},
          {"description", "Probes."},
          {"parameters",
           {{"type", "object"},
            {"properties", {{"key", {{"type", "string"}, {"description", "A key."}}}}},
            {"required", {"key"}}}}}}}});
}

std::string question() {
  return R"({"role":"user","content":"question"})";
}

// The end of a turn, which follows the text of an answer.
std::string end_of_turn(const ChatTemplate& chat) {
  const std::string answer = "unmistakable-answer";
  const auto text = chat.render_json(
      {"[" + question() + R"(,{"role":"assistant","content":")" + answer + "\"}]", "", ""}, false);
  const size_t at = text ? text->rfind(answer) : std::string::npos;
  return at == std::string::npos ? std::string() : text->substr(at + answer.size());
}

bool is_probed_call(const std::optional<std::vector<ToolCall>>& calls) {
  return calls && calls->size() == 1 && calls->front().name == kName &&
         calls->front().arguments == R"({"key":"text"})";
}

// Whether the format reads the call somewhere in the text.
bool reads(const ToolFormat& format, std::string_view text, const OfferedTools& tools) {
  const std::string_view open = format.open.empty() ? "{" : format.open;
  for (size_t at = text.find(open); at != text.npos; at = text.find(open, at + 1)) {
    std::string_view block = text.substr(at + format.open.size());
    if (!format.close.empty()) block = block.substr(0, block.find(format.close));
    if (is_probed_call(format.parse(block, tools))) return true;
  }
  return false;
}

const ToolFormat* format_of(std::string_view text, const OfferedTools& tools) {
  for (const ToolFormat& format : tool_formats()) {
    if (reads(format, text, tools)) return &format;
  }
  return nullptr;
}

}  // namespace

ToolDialect find_dialect(const ChatTemplate& chat) {
  ToolDialect dialect;
  const nlohmann::json json = probed_tools();
  const std::string tools = json.dump();
  const auto plain = chat.render_json({"[" + question() + "]", "", ""});
  const auto offered = chat.render_json({"[" + question() + "]", tools, ""});
  dialect.takes_tools = plain && offered && *plain != *offered;
  const auto known = OfferedTools::read(JsonField(json, kNoFile));
  if (!dialect.takes_tools || !known) return dialect;
  const std::string end = end_of_turn(chat);
  for (const char* arguments : {R"({"key":"text"})", R"("{\"key\":\"text\"}")"}) {
    for (const char* id : {"abcdef123", "functions.probed_tool:0"}) {
      for (const char* content : {"null", "\"\""}) {
        const std::string call =
            str(R"({"role":"assistant","content":)", content, R"(,"tool_calls":[{"id":")", id,
                R"(","type":"function","function":{"name":")", kName, R"(","arguments":)",
                arguments, "}}]}");
        const auto text = chat.render_json({"[" + question() + "," + call + "]", tools, ""}, false);
        // A template may print a missing content as None.
        const bool is_printed = content[0] == 'n' && text && text->find("None") != text->npos;
        if (!text || is_printed) continue;
        const std::string_view turn = std::string_view(*text).substr(
            0, text->ends_with(end) ? text->size() - end.size() : text->size());
        dialect.format = format_of(turn, *known);
        if (!dialect.format) continue;
        dialect.arguments_as_text = arguments[0] == '"';
        dialect.empty_content = content[0] == '"';
        return dialect;
      }
    }
  }
  return dialect;
}

}  // namespace moracle::serve
