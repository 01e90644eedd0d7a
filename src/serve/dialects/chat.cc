// Reads bodies of /v1/chat/completions.
#include "base/json/ordered_json.h"
#include "base/try.h"
#include "serve/dialects/chat_messages.h"
#include "serve/dialects/dialects.h"
#include "serve/dialects/openai_fields.h"

namespace moracle::serve {
namespace {

const std::string kChatFile;

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

Status read_chat_calls(const JsonField& calls, const ToolDialect& dialect, Json& message) {
  MORACLE_TRY(const std::vector<JsonField> items, calls.items());
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonField function = items[i]["function"];
    MORACLE_CHECK(function["name"].text());
    Json& given = message["tool_calls"][i]["function"]["arguments"];
    auto shown = template_arguments(given, dialect);
    if (!shown) return function["arguments"].bad("the text of a JSON object");
    given = *std::move(shown);
  }
  return {};
}

Result<Json> read_chat_messages(const JsonField& field, Json messages, const ToolDialect& dialect) {
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
      MORACLE_CHECK(read_chat_calls(calls, dialect, message));
    }
    const bool has_none = item["content"].is_null() && !calls.value().empty();
    message["content"] = has_none && !dialect.empty_content ? Json() : Json(std::move(content));
  }
  return messages;
}

// Template variables: reasoning_effort first, then chat_template_kwargs, which override it.
// `given`: chat_template_kwargs with its member order.
Result<Json> read_variables(const JsonField& body, const Json& given) {
  MORACLE_TRY(Json variables, read_effort(body["reasoning_effort"]));
  const JsonField more = body["chat_template_kwargs"];
  if (more.is_null()) return variables;
  if (!more.is_object()) return more.bad("an object");
  for (const char* key : {"messages", "tools", "add_generation_prompt"}) {
    if (more.contains(key)) return more[key].bad("a top-level field of the request");
  }
  variables.update(given);
  return variables;
}

Result<ToolChoice> read_chat_choice(const JsonField& field) {
  using Kind = ToolChoice::Kind;
  ToolChoice choice{.place = field.place()};
  if (field.is_null() || field.value() == "auto") return choice;
  if (field.value() == "none" || field.value() == "required") {
    choice.kind = field.value() == "none" ? Kind::kNone : Kind::kRequired;
    return choice;
  }
  if (field["type"].value() != "function")
    return field.unsupported("auto, none, required or a function");
  choice.kind = Kind::kNamed;
  MORACLE_TRY(choice.name, field["function"]["name"].text());
  return choice;
}

}  // namespace

Result<ChatPrompt> read_chat_prompt(const JsonField& body, const std::string& text,
                                    const ServedModel& model) {
  MORACLE_TRY(Json ordered, parse_ordered_json(text));
  ChatRequest request;
  MORACLE_TRY(request.messages,
              read_chat_messages(body["messages"], std::move(ordered["messages"]), model.dialect));
  MORACLE_TRY(request.variables, read_variables(body, ordered["chat_template_kwargs"]));
  MORACLE_TRY(request.add_generation_prompt, body["add_generation_prompt"].flag_or(true));
  MORACLE_TRY(request.choice, read_chat_choice(body["tool_choice"]));
  MORACLE_TRY(request.parallel_calls, body["parallel_tool_calls"].flag_or(true));
  if (!body["tools"].value().empty()) {
    request.tools = std::move(ordered["tools"]);
    if (model.dialect.takes_tools && request.choice.kind != ToolChoice::Kind::kNone) {
      MORACLE_TRY(request.offered, OfferedTools::read(body["tools"]));
    }
  }
  return make_prompt(request, model);
}

Result<GenerationRequest> read_chat(const nlohmann::json& value, const std::string& text,
                                    const ServedModel& model, const Progress& progress) {
  const JsonField body(value, kChatFile);
  GenerationRequest request;
  request.dialect = Dialect::kChat;
  MORACLE_TRY(Job fields, read_openai_fields(body, text, model, request));
  MORACLE_TRY(const bool scores, body["logprobs"].flag_or(false));
  if (scores) fields.num_top = 0;
  if (const JsonField top = body["top_logprobs"]; !top.is_null() && top.value() != 0) {
    MORACLE_TRY(fields.num_top, top.integer(0, kMaxTop));
    if (!scores) return body["logprobs"].bad("true where top_logprobs is set");
  }
  const char* const key =
      body["max_completion_tokens"].is_null() ? "max_tokens" : "max_completion_tokens";
  MORACLE_TRY(const auto max_tokens, read_max_tokens(body[key], 1));
  MORACLE_TRY(const auto budget, read_reasoning_budget(body["thinking_token_budget"], model));
  MORACLE_TRY(ChatPrompt prompt, read_chat_prompt(body, text, model));
  MORACLE_CHECK(add_chat_jobs("messages", model, fields, std::move(prompt), max_tokens, budget,
                              progress, request));
  return request;
}

}  // namespace moracle::serve
