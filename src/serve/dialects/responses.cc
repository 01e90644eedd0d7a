// Reads bodies of /v1/responses.
#include "base/json/ordered_json.h"
#include "base/text.h"
#include "base/try.h"
#include "serve/dialects/chat_messages.h"
#include "serve/dialects/dialects.h"
#include "serve/dialects/job_fields.h"
#include "serve/dialects/structured_outputs.h"

namespace moracle::serve {
namespace {

const std::string kResponsesFile;

// Reads a string, or an array of parts with text.
Result<std::string> read_item_text(const JsonField& content) {
  if (content.value().is_string()) return content.text();
  MORACLE_TRY(const std::vector<JsonField> parts, content.items());
  std::string text;
  for (const JsonField& part : parts) {
    const JsonField field = part["type"];
    const nlohmann::json& type = field.value();
    if (type != "input_text" && type != "output_text" && type != "text")
      return field.unsupported("input_text or output_text");
    MORACLE_TRY(const std::string piece, part["text"].text());
    text += piece;
  }
  return text;
}

// Models reason in full text. The summary stands in for items that lack it.
Result<std::string> read_reasoning_item(const JsonField& item) {
  const JsonField parts = item["content"].value().empty() ? item["summary"] : item["content"];
  std::string text;
  if (parts.is_null()) return text;
  MORACLE_TRY(const std::vector<JsonField> items, parts.items());
  for (const JsonField& part : items) {
    MORACLE_TRY(const std::string piece, part["text"].text());
    text += piece;
  }
  return text;
}

Status read_message_item(const JsonField& item, ChatMessages& messages) {
  MORACLE_TRY(std::string role, item["role"].text());
  if (role == "developer") role = "system";  // OpenAI's newer name
  if (role != "user" && role != "assistant" && role != "system")
    return item["role"].bad("user, assistant, system or developer");
  MORACLE_TRY(const std::string text, read_item_text(item["content"]));
  messages.add_text(role, text);
  return {};
}

Status read_item(const JsonField& item, const Json& ordered, ChatMessages& messages) {
  const JsonField type = item["type"];
  if (type.is_null() || type.value() == "message") return read_message_item(item, messages);
  if (type.value() == "reasoning") {
    MORACLE_TRY(const std::string text, read_reasoning_item(item));
    if (!text.empty()) messages.add_reasoning(text);
    return {};
  }
  if (type.value() == "function_call") {
    MORACLE_TRY(const std::string id, item["call_id"].text());
    MORACLE_TRY(const std::string name, item["name"].text());
    MORACLE_CHECK(item["arguments"].text());
    if (messages.add_call(id, name, ordered["arguments"])) return {};
    return item["arguments"].bad("the text of a JSON object");
  }
  if (type.value() == "function_call_output") {
    MORACLE_TRY(const std::string id, item["call_id"].text());
    MORACLE_TRY(const std::string text, read_item_text(item["output"]));
    messages.add_result(id, text);
    return {};
  }
  return type.unsupported("message, reasoning, function_call or function_call_output");
}

// All items of the conversation: those of previous_response_id, then the new ones.
Result<Json> read_items(const JsonField& body, Json& ordered, const ResponseStore& store) {
  Json items = Json::array();
  if (const JsonField previous = body["previous_response_id"]; !previous.is_null()) {
    MORACLE_TRY(const std::string id, previous.text());
    const auto found = store.find(id);
    if (!found)
      return previous.bad("the id of a stored response; they expire, and the oldest are evicted");
    MORACLE_TRY(items, parse_ordered_json(found->items));
  }
  const JsonField input = body["input"];
  if (input.value().is_string()) {
    items.push_back({{"type", "message"},
                     {"role", "user"},
                     {"content", {{{"type", "input_text"}, {"text", ordered["input"]}}}}});
  } else if (input.value().is_array()) {
    for (Json& item : ordered["input"]) items.push_back(std::move(item));
  } else {
    return input.bad("a string or an array of items");
  }
  return items;
}

Status read_input(const JsonField& body, const Json& items, ChatMessages& messages) {
  if (const JsonField instructions = body["instructions"]; !instructions.is_null()) {
    MORACLE_TRY(const std::string text, instructions.text());
    messages.add_text("system", text);
  }
  // Stored items are valid, so places count from the first new item.
  const size_t num_new = body["input"].value().is_array() ? body["input"].value().size() : 1;
  const nlohmann::json values(items);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto at = static_cast<int64_t>(i + num_new) - static_cast<int64_t>(items.size());
    const JsonField item(values[i], kResponsesFile, str("input[", at, "]"));
    MORACLE_CHECK(read_item(item, items[i], messages));
  }
  if (messages.empty()) return body["input"].bad("at least one message");
  return {};
}

// Functions are flat here; templates nest them.
Status read_flat_tools(const JsonField& tools, const Json& ordered, ChatRequest& request) {
  if (tools.is_null()) return {};
  MORACLE_TRY(const std::vector<JsonField> items, tools.items());
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonField& tool = items[i];
    if (tool["type"].value() != "function") {
      return tool["type"].unsupported(
          "function, because this server has no built-in tools and takes no custom ones");
    }
    MORACLE_CHECK(request.offered.add(tool));
    Json function = Json::object();
    for (const auto& [key, value] : ordered[i].items()) {
      if (key != "type") function[key] = value;
    }
    request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return {};
}

Result<ToolChoice> read_flat_choice(const JsonField& field) {
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
  MORACLE_TRY(choice.name, field["name"].text());
  return choice;
}

Status refuse_in_responses(const JsonField& body) {
  constexpr const char* kFields[] = {
      "background", "conversation", "prompt", "context_management", "top_logprobs",
      "moderation", "stop",         "n",      "max_tool_calls"};
  MORACLE_CHECK(refuse_fields(body, kFields));
  if (const JsonField given = body["truncation"]; !given.is_null() && given.value() != "disabled")
    return given.unsupported("disabled");
  const JsonField verbosity = body["text"]["verbosity"];
  if (!verbosity.is_null() && verbosity.value() != "medium")
    return verbosity.unsupported("medium, because the server cannot change the verbosity");
  if (const JsonField include = body["include"]; !include.is_null()) {
    MORACLE_TRY(const std::vector<JsonField> items, include.items());
    // Reasoning is never encrypted, so nothing is missing without it.
    for (const JsonField& item : items) {
      if (item.value() != "reasoning.encrypted_content")
        return item.unsupported("reasoning.encrypted_content");
    }
  }
  for (const char* key : {"text", "reasoning", "metadata", "stream_options"}) {
    if (!body[key].is_null() && !body[key].is_object()) return body[key].bad("an object");
  }
  return {};
}

Result<std::string> read_text_format(const JsonField& body, const Json& ordered,
                                     const ServedModel& model) {
  const JsonField format = body["text"]["format"];
  if (format.is_null()) return std::string();
  if (!format.is_object()) return format.bad("an object");
  const bool has_tools = !body["tools"].value().empty() && body["tool_choice"].value() != "none";
  return read_format({.format = format,
                      .holder = format,
                      .ordered = ordered.at("text").at("format"),
                      .has_tools = has_tools},
                     body, model);
}

// The request's fields that a response repeats, with their defaults.
Json make_reply_fields(const Json& ordered, const Job& job) {
  const auto given = [&](const char* key, Json absent) {
    const auto found = ordered.find(key);
    return found == ordered.end() || found->is_null() ? std::move(absent) : *found;
  };
  Json text = given("text", Json::object());
  if (!text.contains("format") || text["format"].is_null()) text["format"] = {{"type", "text"}};
  Json reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  reasoning.update(given("reasoning", Json::object()));
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"max_tool_calls", nullptr},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", given("previous_response_id", nullptr)},
          {"reasoning", std::move(reasoning)},
          {"store", given("store", true)},
          {"temperature", given("temperature", job.sampling.temperature)},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", Json::array())},
          {"top_p", given("top_p", job.sampling.top_p)},
          {"truncation", "disabled"},
          {"background", false},
          {"user", given("user", nullptr)}};
}

// A stream repeats these fields three times.
Status check_reply_fields(const Json& fields) {
  constexpr size_t kMaxBytes = 1 << 20;
  size_t total = 0, largest = 0;
  std::string place;
  for (const auto& [key, value] : fields.items()) {
    const size_t bytes = dump(value).size();
    total += bytes;
    if (bytes < largest) continue;
    largest = bytes;
    place = key;
  }
  if (total <= kMaxBytes) return {};
  return Error{ErrorKind::kInvalidArgument, "", place,
               str("at most ", kMaxBytes, " bytes in the fields that a response repeats"),
               str("they have ", total)};
}

}  // namespace

Result<GenerationRequest> read_responses(const nlohmann::json& value, const std::string& text,
                                         const ServedModel& model, const ResponseStore& store,
                                         const Progress& progress) {
  const JsonField body(value, kResponsesFile);
  GenerationRequest request;
  request.dialect = Dialect::kResponses;
  MORACLE_CHECK(refuse_in_responses(body));
  MORACLE_TRY(const Job fields, read_job_fields(body, model, request));
  MORACLE_TRY(Json ordered, parse_ordered_json(text));
  MORACLE_TRY(request.grammar.text, read_text_format(body, ordered, model));
  request.grammar.place = "text.format";
  MORACLE_CHECK(add_structured_outputs(body, ordered, model, request.grammar));
  MORACLE_TRY(const auto max_tokens, read_max_tokens(body["max_output_tokens"], 1));
  MORACLE_TRY(const bool stores, body["store"].flag_or(true));
  request.reply_fields = make_reply_fields(ordered, fields);
  MORACLE_CHECK(check_reply_fields(request.reply_fields));

  ChatRequest chat;
  MORACLE_TRY(chat.choice, read_flat_choice(body["tool_choice"]));
  MORACLE_TRY(chat.parallel_calls, body["parallel_tool_calls"].flag_or(true));
  MORACLE_CHECK(read_flat_tools(body["tools"], ordered["tools"], chat));
  MORACLE_TRY(chat.variables, read_effort(body["reasoning"]["effort"]));
  MORACLE_TRY(Json items, read_items(body, ordered, store));
  ChatMessages messages(model.dialect);
  MORACLE_CHECK(read_input(body, items, messages));
  chat.messages = messages.take();
  MORACLE_TRY(const auto budget, read_reasoning_budget(body["thinking_token_budget"], model));
  MORACLE_TRY(ChatPrompt prompt, make_prompt(chat, model));
  MORACLE_CHECK(add_chat_jobs("input", model, fields, std::move(prompt), max_tokens, budget,
                              progress, request));
  if (stores) request.items = std::move(items);
  return request;
}

}  // namespace moracle::serve
