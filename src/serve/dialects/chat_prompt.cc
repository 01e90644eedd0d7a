#include "serve/dialects/chat_prompt.h"

#include <algorithm>

#include "base/try.h"

namespace moracle::serve {
namespace {

// True if the answer may contain tool calls.
Result<bool> offers_tools(const ChatRequest& request, const ServedModel& model) {
  using Kind = ToolChoice::Kind;
  const ToolChoice& choice = request.choice;
  if (choice.kind == Kind::kRequired || choice.kind == Kind::kNamed) {
    return Error{ErrorKind::kUnsupported, "", choice.place,
                 "auto or none, because the server does not force calls",
                 choice.kind == Kind::kNamed ? "it names a tool" : "it requires a call"};
  }
  if (request.tools.empty() || choice.kind == Kind::kNone) return false;
  if (!model.dialect.takes_tools) {
    return Error{ErrorKind::kUnsupported, "", "tools", "a model whose chat template supports tools",
                 "this model's template ignores them"};
  }
  return true;
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
  ChatPrompt prompt;
  if (offers) {
    conversation.tools = dump(request.tools);
    if (model.dialect.format) {
      prompt.tools = std::make_shared<const ToolUse>(
          ToolUse{*model.dialect.format, request.offered, request.parallel_calls});
    }
  }
  MORACLE_TRY(prompt.text, model.chat->render_json(conversation, request.add_generation_prompt));
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
