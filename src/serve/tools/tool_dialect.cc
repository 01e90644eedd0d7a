#include "serve/tools/tool_dialect.h"

#include "base/text.h"

namespace moracle::serve {
namespace {

constexpr const char* kName = "probed_tool";
constexpr const char* kArguments = R"({"key":"probed_value"})";
constexpr const char* kArgumentsAsText = R"("{\"key\":\"probed_value\"}")";
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

// Renders an answer to find the template's end of turn.
std::string end_of_turn(const ChatTemplate& chat) {
  const std::string answer = "unmistakable-answer";
  const auto text = chat.render_json(
      {"[" + question() + R"(,{"role":"assistant","content":")" + answer + "\"}]", "", ""}, false);
  const size_t at = text ? text->rfind(answer) : std::string::npos;
  return at == std::string::npos ? std::string() : text->substr(at + answer.size());
}

bool is_probed_call(const std::optional<std::vector<ToolCall>>& calls) {
  return calls && calls->size() == 1 && calls->front().name == kName &&
         calls->front().arguments == kArguments;
}

// True if the format parses the probe call anywhere in the text.
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

// True if the prompt has the arguments in a model's format. A wrong argument type shows: a template
// that concatenates strings prints an object as a Python dict, and one that dumps JSON quotes a
// string.
bool shows_call(std::string_view text, bool as_text) {
  if (text.find(kName) == text.npos) return false;
  if (as_text) return text.find(kArguments) != text.npos;
  return text.find("probed_value") != text.npos &&
         text.find("{'key': 'probed_value'}") == text.npos;
}

// Finds the exact text of calls: with two calls, else with one.
std::optional<CallSyntax> syntax_of(const ChatTemplate& chat, const ToolDialect& dialect,
                                    std::string_view id, const std::string& tools,
                                    const std::string& end) {
  const auto call = [&](int number) {
    std::string own(id);
    own.back() = static_cast<char>(own.back() + number);
    return str(R"({"id":")", own, R"(","type":"function","function":{"name":")", kName,
               R"(","arguments":)", dialect.arguments_as_text ? kArgumentsAsText : kArguments,
               "}}");
  };
  for (const bool is_pair : {true, false}) {
    const auto text =
        chat.render_json({str("[", question(), R"(,{"role":"assistant","content":)",
                              dialect.empty_content ? "\"\"" : "null", R"(,"tool_calls":[)",
                              call(0), is_pair ? "," + call(1) : std::string(), "]}]"),
                          tools, ""},
                         false);
    if (!text) continue;
    const auto without = chat.render_json({"[" + question() + "]", tools, ""}, false);
    std::string_view turn = *text;
    if (turn.ends_with(end)) turn.remove_suffix(end.size());
    if (without && turn.starts_with(*without)) turn.remove_prefix(without->size());
    auto syntax = find_call_syntax(*dialect.format, turn, kName);
    if (syntax && syntax->repeats == is_pair) return syntax;
  }
  return {};
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
  if (!known) return dialect;
  const std::string end = end_of_turn(chat);
  bool is_shown = false;
  for (const bool as_text : {false, true}) {
    for (const char* id : {"abcdef123", "functions.probed_tool:0"}) {
      for (const char* content : {"null", "\"\""}) {
        const std::string call =
            str(R"({"role":"assistant","content":)", content, R"(,"tool_calls":[{"id":")", id,
                R"(","type":"function","function":{"name":")", kName, R"(","arguments":)",
                as_text ? kArgumentsAsText : kArguments, "}}]}");
        const auto text = chat.render_json(
            {"[" + question() + "," + call + "]", dialect.takes_tools ? tools : "", ""}, false);
        // Some templates print null content as "None".
        const bool is_printed = content[0] == 'n' && text && text->find("None") != text->npos;
        if (!text || is_printed || !shows_call(*text, as_text)) continue;
        const std::string_view turn = std::string_view(*text).substr(
            0, text->ends_with(end) ? text->size() - end.size() : text->size());
        const ToolFormat* const format = dialect.takes_tools ? format_of(turn, *known) : nullptr;
        // Prefer a call whose format is known.
        if (is_shown && !format) continue;
        is_shown = true;
        dialect.format = format;
        dialect.arguments_as_text = as_text;
        dialect.empty_content = content[0] == '"';
        if (!format) continue;
        dialect.syntax = syntax_of(chat, dialect, id, tools, end);
        return dialect;
      }
    }
  }
  return dialect;
}

}  // namespace moracle::serve
