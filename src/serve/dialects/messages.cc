// Reads bodies of /v1/messages and /v1/messages/count_tokens, Anthropic's API.
#include "base/json/ordered_json.h"
#include "base/try.h"
#include "serve/dialects/chat_messages.h"
#include "serve/dialects/dialects.h"
#include "serve/dialects/job_fields.h"

namespace moracle::serve {
namespace {

const std::string kMessagesFile;

// Reads a string, or an array of text blocks.
Result<std::string> read_text_blocks(const JsonField& content, const char* separator) {
  if (content.is_null()) return std::string();
  if (content.value().is_string()) return content.text();
  MORACLE_TRY(const std::vector<JsonField> blocks, content.items());
  std::string text;
  for (const JsonField& block : blocks) {
    if (block["type"].value() != "text") return block["type"].unsupported("text");
    MORACLE_TRY(const std::string piece, block["text"].text());
    if (!text.empty()) text += separator;
    text += piece;
  }
  return text;
}

Status read_assistant_block(const JsonField& block, const Json& ordered, ChatMessages& messages) {
  const JsonField type = block["type"];
  if (type.value() == "text") {
    MORACLE_TRY(const std::string text, block["text"].text());
    messages.add_text("assistant", text);
  } else if (type.value() == "thinking") {
    MORACLE_TRY(const std::string text, block["thinking"].text());
    messages.add_reasoning(text);
  } else if (type.value() == "tool_use") {
    MORACLE_TRY(const std::string id, block["id"].text());
    MORACLE_TRY(const std::string name, block["name"].text());
    if (!block["input"].is_object()) return block["input"].bad("an object");
    messages.add_call(id, name, ordered.at("input"));
  } else if (type.value() != "redacted_thinking") {  // from another server: its text is unknown
    return type.unsupported("text, thinking or tool_use");
  }
  return {};
}

Status read_user_block(const JsonField& block, ChatMessages& messages, std::string& text) {
  const JsonField type = block["type"];
  if (type.value() == "text") {
    MORACLE_TRY(const std::string piece, block["text"].text());
    if (!text.empty()) text += "\n";
    text += piece;
  } else if (type.value() == "tool_result") {
    MORACLE_TRY(const std::string id, block["tool_use_id"].text());
    MORACLE_TRY(const std::string result, read_text_blocks(block["content"], "\n"));
    messages.add_result(id, result);
  } else {
    return type.unsupported("text or tool_result");
  }
  return {};
}

Status read_blocks(const JsonField& item, const Json& ordered, ChatMessages& messages) {
  MORACLE_TRY(const std::string role, item["role"].text());
  if (role != "user" && role != "assistant" && role != "system")
    return item["role"].bad("user, assistant or system");
  const JsonField content = item["content"];
  if (content.value().is_string()) {
    messages.add_text(role, *content.text());
    return {};
  }
  if (role == "system") {
    MORACLE_TRY(const std::string text, read_text_blocks(content, "\n"));
    messages.add_text(role, text);
    return {};
  }
  MORACLE_TRY(const std::vector<JsonField> blocks, content.items());
  if (blocks.empty()) return content.bad("at least one block");
  std::string text;
  bool has_text = false;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (role == "assistant") {
      MORACLE_CHECK(read_assistant_block(blocks[i], ordered.at("content")[i], messages));
    } else {
      MORACLE_CHECK(read_user_block(blocks[i], messages, text));
      has_text = has_text || blocks[i]["type"].value() == "text";
    }
  }
  if (has_text) messages.add_text("user", text);
  return {};
}

Status read_custom_tools(const JsonField& tools, const Json& ordered, ChatRequest& request) {
  if (tools.is_null()) return {};
  MORACLE_TRY(const std::vector<JsonField> items, tools.items());
  for (size_t i = 0; i < items.size(); ++i) {
    const JsonField type = items[i]["type"];
    if (!type.is_null() && type.value() != "custom")
      return type.unsupported("custom, because this server has no built-in tools");
    MORACLE_CHECK(request.offered.add(items[i], "input_schema"));
    Json function = {{"name", ordered[i]["name"]}};
    const Json& given = ordered[i];
    if (given.contains("description")) function["description"] = given["description"];
    function["parameters"] =
        given.contains("input_schema") ? given["input_schema"] : Json::object();
    if (given.contains("strict")) function["strict"] = given["strict"];
    request.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return {};
}

Status read_block_choice(const JsonField& field, ChatRequest& request) {
  using Kind = ToolChoice::Kind;
  request.choice.place = field.place();
  if (field.is_null()) return {};
  if (!field.is_object()) return field.bad("an object");
  const JsonField type = field["type"];
  if (type.value() == "none") {
    request.choice.kind = Kind::kNone;
  } else if (type.value() == "any") {
    request.choice.kind = Kind::kRequired;
  } else if (type.value() == "tool") {
    request.choice.kind = Kind::kNamed;
    MORACLE_TRY(request.choice.name, field["name"].text());
  } else if (type.value() != "auto") {
    return type.bad("auto, any, tool or none");
  }
  MORACLE_TRY(const bool single, field["disable_parallel_tool_use"].flag_or(false));
  request.parallel_calls = !single;
  return {};
}

// Thinking is off unless the request turns it on, as in Anthropic's API.
Result<Json> read_thinking(const JsonField& body) {
  const JsonField thinking = body["thinking"];
  MORACLE_TRY(Json variables, read_effort(body["output_config"]["effort"]));
  const JsonField type = thinking["type"];
  const bool is_on = type.value() == "enabled" || type.value() == "adaptive";
  if (!thinking.is_null() && !is_on && type.value() != "disabled")
    return type.bad("enabled, adaptive or disabled");
  variables["enable_thinking"] = is_on;
  variables["thinking"] = is_on;
  return variables;
}

Status refuse_in_messages(const JsonField& body) {
  constexpr const char* kFields[] = {"container", "mcp_servers", "stop", "n"};
  MORACLE_CHECK(refuse_fields(body, kFields));
  for (const char* key : {"metadata", "output_config", "thinking", "context_management"}) {
    if (!body[key].is_null() && !body[key].is_object()) return body[key].bad("an object");
  }
  // This edit drops nothing, so no server needs to apply it.
  const JsonField edits = body["context_management"]["edits"];
  if (edits.is_null()) return {};
  MORACLE_TRY(const std::vector<JsonField> items, edits.items());
  for (const JsonField& edit : items) {
    if (edit["keep"].value() != "all")
      return edit.unsupported("an edit with keep: all, because the server edits no conversation");
  }
  return {};
}

}  // namespace

Result<ChatPrompt> read_messages_prompt(const JsonField& body, const std::string& text,
                                        const ServedModel& model) {
  MORACLE_TRY(Json ordered, parse_ordered_json(text));
  ChatMessages messages(model.dialect);
  if (const JsonField system = body["system"]; !system.is_null()) {
    MORACLE_TRY(const std::string given, read_text_blocks(system, "\n\n"));
    messages.add_text("system", given);
  }
  const JsonField field = body["messages"];
  MORACLE_TRY(const std::vector<JsonField> items, field.items());
  if (items.empty()) return field.bad("at least one message");
  for (size_t i = 0; i < items.size(); ++i)
    MORACLE_CHECK(read_blocks(items[i], ordered["messages"][i], messages));
  if (messages.ends_with_assistant())
    return items.back()["role"].unsupported("a last message of the user: answers start anew");
  ChatRequest request;
  request.messages = messages.take();
  MORACLE_CHECK(read_custom_tools(body["tools"], ordered["tools"], request));
  MORACLE_CHECK(read_block_choice(body["tool_choice"], request));
  MORACLE_TRY(request.variables, read_thinking(body));
  return make_prompt(request, model);
}

Result<GenerationRequest> read_messages(const nlohmann::json& value, const std::string& text,
                                        const ServedModel& model, const Progress& progress) {
  const JsonField body(value, kMessagesFile);
  GenerationRequest request;
  request.dialect = Dialect::kMessages;
  MORACLE_CHECK(refuse_in_messages(body));
  MORACLE_TRY(Job fields, read_job_fields(body, model, request));
  MORACLE_CHECK(read_stop_strings(body["stop_sequences"], fields.stop_strings));
  if (body["max_tokens"].is_null()) return body["max_tokens"].bad("a whole number");
  MORACLE_TRY(const auto max_tokens, read_max_tokens(body["max_tokens"], 1));
  if (const JsonField format = body["output_config"]["format"]; !format.is_null()) {
    MORACLE_TRY(const Json ordered, parse_ordered_json(text));
    const bool has_tools =
        !body["tools"].value().empty() && body["tool_choice"]["type"].value() != "none";
    MORACLE_TRY(request.grammar.text, read_format({.format = format,
                                                   .holder = format,
                                                   .ordered = ordered["output_config"]["format"],
                                                   .has_tools = has_tools},
                                                  body, model));
    request.grammar.place = "output_config.format";
  }
  const JsonField given = body["thinking"]["budget_tokens"];
  if (body["thinking"]["type"].value() == "enabled" && given.is_null())
    return given.bad("a whole number");
  // A model that does not reason keeps every budget.
  MORACLE_TRY(const auto budget, read_max_tokens(given, 1));
  MORACLE_TRY(ChatPrompt prompt, read_messages_prompt(body, text, model));
  MORACLE_CHECK(add_chat_jobs("messages", model, fields, std::move(prompt), max_tokens, budget,
                              progress, request));
  return request;
}

}  // namespace moracle::serve
