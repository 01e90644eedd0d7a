#include "serve/dialects/chat_prompt.h"

#include <algorithm>

#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/grammar/schema.h"
#include "serve/tools/call_cursor.h"
#include "serve/tools/call_grammar.h"
#include "serve/tools/gemma/gemma_grammar.h"
#include "serve/tools/minimax_m3/minimax_m3_schema.h"

namespace moracle::serve {
namespace {

constexpr size_t kMaxGrammarTools = 512;

using ChoiceKind = ToolChoice::Kind;

bool is_forced(const ToolChoice& choice) {
  return choice.kind == ChoiceKind::kRequired || choice.kind == ChoiceKind::kNamed;
}

// True if the answer may contain tool calls.
Result<bool> offers_tools(const ChatRequest& request, const ServedModel& model) {
  const ToolChoice& choice = request.choice;
  if (request.tools.empty() && is_forced(choice)) {
    return Error{ErrorKind::kInvalidArgument, "", "tools", "tools to choose from",
                 "the request has none"};
  }
  if (request.tools.empty() || choice.kind == ChoiceKind::kNone) return false;
  if (!model.dialect.takes_tools) {
    return Error{ErrorKind::kUnsupported, "", "tools", "a model whose chat template supports tools",
                 "this model's template ignores them"};
  }
  if (choice.kind == ChoiceKind::kNamed && !request.offered.has(choice.name)) {
    return Error{ErrorKind::kInvalidArgument, "", choice.place, "the name of a tool of the request",
                 "it names another"};
  }
  return true;
}

// Counts a name against `left`. The grammar forces names as they are, so they must not contain what
// a format puts around them.
Status check_grammar_name(const std::string& name, SchemaLimits& left, const std::string& place) {
  const auto size = static_cast<int64_t>(name.size());
  const auto wrong = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kInvalidArgument, "", place, std::move(need), std::move(fact)};
  };
  if (size > left.value_bytes) {
    return wrong(str("a name of at most ", left.value_bytes, " bytes with tool_choice or strict"),
                 str("it has ", size));
  }
  const auto is_tag = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' ||
           std::string_view("\"\\<>[]{}").find(c) != std::string_view::npos;
  };
  if (std::any_of(name.begin(), name.end(), is_tag)) {
    return wrong("a name without space, quote, backslash or bracket with tool_choice or strict",
                 "it is " + printable(name, 60));
  }
  if (size > left.bytes)
    return wrong("fewer bytes of names and values in all tools", "no more are left");
  left.bytes -= size;
  return {};
}

// The grammar's tools, with lowered schemas. A tool that is not strict may have keywords that the
// grammar engine does not know: then its arguments are any object.
Result<std::vector<GrammarTool>> grammar_tools(const ChatRequest& request,
                                               const ServedModel& model) {
  std::vector<GrammarTool> tools;
  if (request.tools.size() > kMaxGrammarTools) {
    return Error{ErrorKind::kUnsupported, "", "tools",
                 str("at most ", kMaxGrammarTools, " tools with tool_choice or strict"),
                 str("it has ", request.tools.size())};
  }
  // Limits of all schemas together bound the time to compile the grammar.
  SchemaLimits left = SchemaLimits::of_vocabulary(model.vocab_size);
  for (size_t i = 0; i < request.tools.size(); ++i) {
    const Json& function = request.tools[i].at("function");
    const std::string name = function.at("name");
    if (request.choice.kind == ChoiceKind::kNamed && name != request.choice.name) continue;
    MORACLE_CHECK(check_grammar_name(name, left, str("tools[", i, "].name")));
    const auto given = function.find("parameters");
    const bool is_strict = request.offered.is_strict(name);
    GrammarTool tool{name, R"({"type":"object"})"};
    const std::string_view style = model.dialect.format->style;
    const bool is_gemma = style == kGemmaStyle, is_m3 = style == kMiniMaxM3Style;
    if (is_m3) tool.schema.clear();
    const std::string place = str("tools[", i, "].parameters");
    if (is_gemma) {
      MORACLE_TRY(tool.schema,
                  gemma_grammar(R"({"type":"object","additionalProperties":{}})", place));
    }
    if (given != function.end() && given->is_object() && !given->empty()) {
      auto lowered = lower_schema_within(*given, /*strict=*/true, left, place);
      if (lowered && is_gemma) lowered = gemma_grammar(*lowered, place);
      if (const Status fits = lowered && is_m3 ? check_minimax_m3(*lowered, place) : Status();
          !fits)
        lowered = fits.error();
      if (!lowered && is_strict) return lowered.error();
      if (lowered) tool.schema = *std::move(lowered);
    }
    tools.push_back(std::move(tool));
  }
  return tools;
}

Result<GrammarText> calls_grammar(const ChatRequest& request, const ServedModel& model,
                                  const AnswerForm& form, bool is_thinking_off) {
  const bool is_required = is_forced(request.choice);
  if (!is_required && !request.offered.has_strict()) return GrammarText{};
  const auto unsupported = [&](std::string need, std::string fact) {
    return Error{ErrorKind::kUnsupported, "", is_required ? request.choice.place : "tools.strict",
                 std::move(need), std::move(fact)};
  };
  if (!model.grammars) return unsupported("the grammar engine", model.no_grammars);
  if (!model.dialect.format || !model.dialect.syntax)
    return unsupported("calls that the server can constrain", "this model's format is another");
  if (!is_required && model.dialect.format->open.empty())
    return unsupported("calls with an opening tag", "this model's calls have none");
  MORACLE_TRY(std::vector<GrammarTool> tools, grammar_tools(request, model));
  CallGrammar grammar{
      .format = *model.dialect.format,
      .syntax = *model.dialect.syntax,
      .tools = std::move(tools),
      .is_required = is_required,
      .is_single = !request.parallel_calls || request.choice.kind == ChoiceKind::kNamed};
  if (form.reasoning && !form.is_reasoning && !is_thinking_off) {
    grammar.reasoning_open = form.reasoning->open;
    grammar.reasoning_close =
        form.reasoning->has_channels
            ? form.reasoning->forced.substr(0, form.reasoning->forced.rfind("<|channel|>"))
            : form.reasoning->close;
  }
  return GrammarText{GrammarText::Kind::kStructuralTag, structural_tag(grammar), "tools"};
}

}  // namespace

Result<ChatPrompt> make_prompt(const ChatRequest& request, const ServedModel& model) {
  if (!model.chat) {
    return Error{ErrorKind::kUnsupported, "", "messages", "a model with a chat template",
                 model.no_chat};
  }
  MORACLE_TRY(const bool offers, offers_tools(request, model));
  ChatConversation conversation;
  conversation.messages = dump(request.messages);
  conversation.variables = dump(request.variables);
  if (offers) conversation.tools = dump(request.tools);
  ChatPrompt prompt;
  MORACLE_TRY(prompt.text, model.chat->render_json(conversation, request.add_generation_prompt));
  prompt.form.reasoning = model.reasoning;
  prompt.form.is_reasoning = model.reasoning && opens_reasoning(*model.reasoning, prompt.text);
  if (!offers) return prompt;
  const bool is_off =
      model.reasoning && trimmed(prompt.text).ends_with(trimmed(model.reasoning->close));
  MORACLE_TRY(prompt.grammar, calls_grammar(request, model, prompt.form, is_off));
  if (model.dialect.format) {
    prompt.form.tools = std::make_shared<const ToolUse>(
        ToolUse{*model.dialect.format, request.offered, request.parallel_calls});
  }
  return prompt;
}

Result<Json> read_effort(const JsonField& effort) {
  if (effort.is_null()) return Json::object();
  if (effort.value() == "none") return Json{{"enable_thinking", false}, {"thinking", false}};
  const char* const known[] = {"minimal", "low", "medium", "high", "xhigh", "max"};
  if (std::find(std::begin(known), std::end(known), effort.value()) == std::end(known))
    return effort.bad("none, minimal, low, medium, high, xhigh or max");
  return Json{{"reasoning_effort", effort.value().get_ref<const std::string&>()}};
}

}  // namespace moracle::serve
