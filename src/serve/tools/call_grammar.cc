#include "serve/tools/call_grammar.h"

#include "serve/tools/minimax_m3/minimax_m3_calls.h"

namespace moracle::serve {
namespace {

using TagJson = nlohmann::ordered_json;

constexpr int kMaxCallSpaces = 16;  // between two JSON tokens: some models indent forever

TagJson constant(std::string_view text) {
  return {{"type", "const_string"}, {"value", std::string(text)}};
}

TagJson regex(const char* pattern) {
  return {{"type", "regex"}, {"pattern", pattern}};
}

TagJson sequence(TagJson elements) {
  TagJson kept = TagJson::array();
  for (TagJson& each : elements) {
    if (each["type"] != "const_string" || each["value"] != "") kept.push_back(std::move(each));
  }
  return {{"type", "sequence"}, {"elements", std::move(kept)}};
}

// Text of the template. The ids of the probe calls stand for any id.
TagJson literal(std::string_view text) {
  TagJson elements = TagJson::array();
  for (size_t at = text.find(kProbeId); at != text.npos; at = text.find(kProbeId)) {
    elements.push_back(constant(text.substr(0, at)));
    elements.push_back(regex("[0-9A-Za-z]{9}"));
    text.remove_prefix(at + kProbeId.size() + 1);
  }
  if (elements.empty()) return constant(text);
  elements.push_back(constant(text));
  return sequence(std::move(elements));
}

// The text after arguments. Templates print the line break only after arguments between tags, and
// some calls have none.
TagJson after_arguments(const CallGrammar& grammar, std::string_view text) {
  if (grammar.format.style == "json" || !text.starts_with('\n')) return literal(text);
  return sequence(TagJson::array({regex("\\n{0,1}"), literal(text.substr(1))}));
}

// The text between name and arguments. Kimi numbers its calls there.
TagJson middle_of(const std::string& middle) {
  constexpr std::string_view kNumber = ":0";
  if (!middle.starts_with(kNumber)) return literal(middle);
  return sequence(TagJson::array(
      {constant(":"), regex("[0-9]{1,4}"), constant(middle.substr(kNumber.size()))}));
}

TagJson arguments_of(const GrammarTool& tool, std::string_view style) {
  if (style == kGemmaStyle) return {{"type", "grammar"}, {"grammar", tool.schema}};
  if (tool.schema.empty()) {
    // The engine has no grammar of any value in this style. Keep the arguments inside their call.
    const std::string tag(kMiniMaxM3Tag);
    return {{"type", "any_text"},
            {"excludes", {tag + "/invoke>", tag + "invoke", tag + "/tool_call>"}}};
  }
  return {{"type", "json_schema"},
          {"json_schema", TagJson::parse(tool.schema, nullptr, false)},
          {"style", std::string(style)},
          {"max_whitespace_cnt", kMaxCallSpaces}};
}

TagJson call(const CallGrammar& grammar) {
  TagJson options = TagJson::array();
  for (const GrammarTool& tool : grammar.tools) {
    options.push_back(
        sequence(TagJson::array({constant(tool.name), middle_of(grammar.syntax.middle),
                                 arguments_of(tool, grammar.format.style)})));
  }
  if (options.size() == 1) return options[0];
  return {{"type", "or"}, {"elements", std::move(options)}};
}

}  // namespace

std::string structural_tag(const CallGrammar& grammar) {
  const CallSyntax& syntax = grammar.syntax;
  const TagJson one = call(grammar);
  TagJson calls = TagJson::array({one});
  if (syntax.repeats && !grammar.is_single) {
    calls.push_back(
        {{"type", "star"},
         {"content", sequence(TagJson::array({after_arguments(grammar, syntax.between), one}))}});
  }
  calls.push_back(after_arguments(grammar, syntax.tail));
  const TagJson blank = regex("[ \\n]{0,4}");
  TagJson whole;
  if (grammar.is_required) {
    TagJson elements = TagJson::array({blank, constant(syntax.head)});
    for (TagJson& each : calls) elements.push_back(std::move(each));
    whole = sequence(std::move(elements));
  } else {
    // Text is free up to the opening tag.
    const size_t open = grammar.format.open.size();
    TagJson elements = TagJson::array({constant(syntax.head.substr(open))});
    for (TagJson& each : calls) elements.push_back(std::move(each));
    whole = {{"type", "dispatch"},
             {"rules", TagJson::array({TagJson::array(
                           {std::string(grammar.format.open), sequence(std::move(elements))})})},
             {"loop", !grammar.is_single}};
  }
  if (grammar.is_required && !grammar.reasoning_open.empty()) {
    const TagJson reasoning = {{"type", "tag"},
                               {"begin", grammar.reasoning_open},
                               {"content", {{"type", "any_text"}}},
                               {"end", grammar.reasoning_close}};
    whole = sequence(TagJson::array(
        {TagJson{{"type", "optional"}, {"content", sequence(TagJson::array({blank, reasoning}))}},
         std::move(whole)}));
  }
  const TagJson tag = {{"type", "structural_tag"}, {"format", std::move(whole)}};
  return tag.dump(-1, ' ', false, TagJson::error_handler_t::replace);
}

}  // namespace moracle::serve
