#include "serve/api/chat_prompt.h"

#include <algorithm>

#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/api/api_error.h"
#include "serve/tools/call_cursor.h"

namespace moracle::serve {
namespace {

// Reads a message's content: a string, or an array of text parts.
Result<std::string> read_content(const JsonField& content) {
  if (content.is_null()) return std::string();
  if (content.value().is_string()) return content.text();
  MORACLE_TRY(const std::vector<JsonField> parts, content.items());
  std::string text;
  for (const JsonField& part : parts) {
    if (part["type"].value() != "text") return part["type"].unsupported("the type text");
    MORACLE_TRY(const std::string piece, part["text"].text());
    text += piece;
  }
  return text;
}

// Clients send an empty string for functions without parameters.
bool has_no_arguments(const nlohmann::json& arguments) {
  return arguments.is_null() || arguments == "" || arguments == "null";
}

// OpenAI's API has arguments as a string; templates expect an object.
Status read_calls(const JsonField& calls, const ToolDialect& dialect, Json& message) {
  MORACLE_TRY(const std::vector<JsonField> items, calls.items());
  Json& shown_calls = message["tool_calls"];
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonField function = items[i]["function"];
    MORACLE_CHECK(function["name"].text());
    const JsonField arguments = function["arguments"];
    Json& shown = shown_calls[i]["function"]["arguments"];
    if (has_no_arguments(arguments.value())) {
      shown = dialect.arguments_as_text ? Json("{}") : Json::object();
    } else if (arguments.value().is_string()) {
      const auto parsed = parse_json(arguments.value().get_ref<const std::string&>());
      if (!parsed || !parsed->is_object()) return arguments.bad("the text of a JSON object");
      if (!dialect.arguments_as_text) shown = *parsed;
    } else if (!arguments.is_object()) {
      return arguments.bad("the text of a JSON object");
    } else if (dialect.arguments_as_text) {
      shown = shown.dump();
    }
  }
  return {};
}

Result<Json> read_messages(const JsonField& field, Json messages, const ToolDialect& dialect) {
  MORACLE_TRY(const std::vector<JsonField> items, field.items());
  if (items.empty()) return field.bad("at least one message");
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonField& item = items[i];
    MORACLE_CHECK(item["role"].text());
    if (!item["function_call"].is_null())
      return item["function_call"].unsupported("no value; tool_calls replaces it");
    MORACLE_TRY(std::string content, read_content(item["content"]));
    Json& message = messages[i];
    const JsonField calls = item["tool_calls"];
    if (calls.value().empty()) {
      message.erase("tool_calls");
    } else {
      MORACLE_CHECK(read_calls(calls, dialect, message));
    }
    const bool has_none = item["content"].is_null() && !calls.value().empty();
    message["content"] = has_none && !dialect.empty_content ? Json() : Json(std::move(content));
  }
  return messages;
}

// True if the answer may contain tool calls.
Result<bool> offers_tools(const JsonField& body, const ServedModel& model) {
  const JsonField choice = body["tool_choice"];
  const bool is_auto = choice.is_null() || choice.value() == "auto";
  if (!is_auto && choice.value() != "none")
    return choice.unsupported("auto or none, because the server does not force calls");
  if (body["parallel_tool_calls"].value() == false)
    return body["parallel_tool_calls"].unsupported("true, because the server does not limit calls");
  if (body["tools"].value().empty() || choice.value() == "none") return false;
  if (!model.dialect.takes_tools) {
    return Error{ErrorKind::kUnsupported, "", "tools", "a model whose chat template supports tools",
                 "this model's template ignores them"};
  }
  return true;
}

// Template variables: reasoning_effort first, then chat_template_kwargs, which override it.
// `given`: chat_template_kwargs with its member order.
Result<Json> read_variables(const JsonField& body, const Json& given) {
  Json variables = Json::object();
  if (const JsonField effort = body["reasoning_effort"]; effort.value() == "none") {
    variables = {{"enable_thinking", false}, {"thinking", false}};
  } else if (!effort.is_null()) {
    const char* const known[] = {"minimal", "low", "medium", "high", "xhigh", "max"};
    if (std::find(std::begin(known), std::end(known), effort.value()) == std::end(known))
      return effort.bad("none, minimal, low, medium, high, xhigh or max");
    variables["reasoning_effort"] = effort.value().get_ref<const std::string&>();
  }
  const JsonField more = body["chat_template_kwargs"];
  if (more.is_null()) return variables;
  if (!more.is_object()) return more.bad("an object");
  for (const char* key : {"messages", "tools", "add_generation_prompt"}) {
    if (more.contains(key)) return more[key].bad("a top-level field of the request");
  }
  variables.update(given);
  return variables;
}

}  // namespace

Result<ChatPrompt> read_chat_prompt(const JsonField& body, const std::string& text,
                                    const ServedModel& model) {
  if (!model.chat) {
    return Error{ErrorKind::kUnsupported, "", "messages", "a model with a chat template",
                 model.no_chat};
  }
  MORACLE_TRY(Json ordered, parse_ordered_json(text));
  MORACLE_TRY(const Json messages,
              read_messages(body["messages"], std::move(ordered["messages"]), model.dialect));
  MORACLE_TRY(const Json variables, read_variables(body, ordered["chat_template_kwargs"]));
  MORACLE_TRY(const bool answer, body["add_generation_prompt"].flag_or(true));
  MORACLE_TRY(const bool offers, offers_tools(body, model));
  ChatConversation conversation;
  conversation.messages = dump(messages);
  conversation.variables = dump(variables);
  ChatPrompt prompt;
  if (offers) {
    MORACLE_TRY(OfferedTools tools, OfferedTools::read(body["tools"]));
    conversation.tools = dump(ordered["tools"]);
    if (model.dialect.format) {
      prompt.tools =
          std::make_shared<const ToolUse>(ToolUse{*model.dialect.format, std::move(tools)});
    }
  }
  MORACLE_TRY(prompt.text, model.chat->render_json(conversation, answer));
  return prompt;
}

}  // namespace moracle::serve
