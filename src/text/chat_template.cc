// ChatTemplate: reads files and passes conversations to the renderer in jinja/.
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "checkpoint/config.h"
#include "moracle/text.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/syntax/parser.h"

namespace moracle {

struct ChatTemplate::State {
  std::string origin;
  std::map<std::string, std::string> special_tokens;
  jinja::Body body;
};

namespace {

using Json = nlohmann::json;

Result<Json> read_config(const std::string& path) {
  MORACLE_TRY(const std::string text, read_small_file(path));
  MORACLE_CHECK(check_json_text(text, path));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return Error{ErrorKind::kBadFile, path, "", "a JSON object",
               json.is_discarded() ? "it is not JSON" : str("it is of type ", json.type_name())};
}

// Returns the text of a token: a string, or the "content" string of an object. Anything else is no
// token.
std::optional<std::string> token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (!token.is_object()) return std::nullopt;
  const auto content = token.find("content");
  if (content == token.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

// Returns the named tokens that transformers gives to templates: the standard ones, and additional
// ones that the model names.
std::map<std::string, std::string> special_tokens_of(const Json& config) {
  std::map<std::string, std::string> tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (auto text = token_text(*found)) tokens.emplace(name, std::move(*text));
  }
  const auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return tokens;
  for (const auto& [name, token] : extra->items()) {
    if (auto text = token_text(token)) tokens.emplace(name, std::move(*text));
  }
  return tokens;
}

// "chat_template": the template, or a list of templates with names.
Result<std::string> template_of(const Json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) return found->get<std::string>();
  Error error{ErrorKind::kBadFile, path, "chat_template", "a chat template", "it is missing"};
  if (found == config.end() || found->is_null()) return error;
  error.need = "a string, or a list of objects with a name and a template";
  error.fact = str("it is of type ", found->type_name());
  if (!found->is_array()) return error;
  for (const Json& entry : *found) {
    if (!entry.is_object()) return error;
    const auto name = entry.find("name");
    const auto text = entry.find("template");
    if (name == entry.end() || text == entry.end() || !text->is_string()) return error;
    if (*name == "default") return text->get<std::string>();
  }
  error.need = "a template named \"default\"";
  error.fact = str("none of the ", found->size(), " templates has that name");
  return error;
}

Status check_utf8(std::string_view text, std::string place) {
  const auto at = first_invalid_utf8(text);
  if (!at) return {};
  return Error{ErrorKind::kInvalidArgument, "", std::move(place), "UTF-8",
               str("byte ", *at, " is not part of a character")};
}

Result<jinja::Value> to_value(jinja::Heap& heap, std::span<const ChatMessage> messages) {
  jinja::Values list;
  for (size_t i = 0; i < messages.size(); ++i) {
    MORACLE_CHECK(check_utf8(messages[i].role, str("message ", i, ", role")));
    MORACLE_CHECK(check_utf8(messages[i].content, str("message ", i, ", content")));
    std::vector<std::pair<jinja::Value, jinja::Value>> entries;
    for (const auto& [key, text] :
         {std::pair("role", &messages[i].role), std::pair("content", &messages[i].content)}) {
      MORACLE_TRY(jinja::Value name, heap.text(key));
      MORACLE_TRY(jinja::Value value, heap.text(*text));
      entries.emplace_back(std::move(name), std::move(value));
    }
    MORACLE_TRY(jinja::Value message, heap.mapping(std::move(entries)));
    list.push_back(std::move(message));
  }
  return heap.list(std::move(list));
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::open(const std::string& folder) {
  const std::string file = folder + "/chat_template.jinja";
  const std::string config_path = folder + "/tokenizer_config.json";
  const bool has_file = !is_absent(file);
  Json config = Json::object();
  if (!has_file || !is_absent(config_path)) {
    MORACLE_TRY(config, read_config(config_path));
  }
  if (has_file) {
    MORACLE_TRY(std::string text, read_small_file(file));
    return parse(std::move(text), file, special_tokens_of(config));
  }
  MORACLE_TRY(std::string text, template_of(config, config_path));
  return parse(std::move(text), config_path, special_tokens_of(config));
}

Result<ChatTemplate> ChatTemplate::parse(std::string text, std::string origin,
                                         std::map<std::string, std::string> special_tokens) {
  auto state = std::make_unique<State>();
  state->origin = std::move(origin);
  state->special_tokens = std::move(special_tokens);
  const auto fail = [&](Error error) {
    error.file = state->origin;
    return error;
  };
  if (text.size() > jinja::kMaxTemplateBytes) {
    return fail(jinja::limit_error(str("a template of ", text.size(), " bytes")));
  }
  if (const auto at = first_invalid_utf8(text)) {
    return fail(Error{ErrorKind::kBadFile, "", str("byte ", *at), "UTF-8",
                      "the byte is not part of a character"});
  }
  auto body = jinja::parse_template(text);
  if (!body) return fail(std::move(body).error());
  state->body = *std::move(body);
  return ChatTemplate(std::move(state));
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool add_generation_prompt) const {
  jinja::Interpreter interpreter;
  const auto run = [&]() -> Result<std::string> {
    jinja::Heap& heap = interpreter.heap();
    for (const auto& [name, token] : state_->special_tokens) {
      MORACLE_TRY(jinja::Value value, heap.text(token));
      interpreter.set(name, std::move(value));
    }
    MORACLE_TRY(jinja::Value conversation, to_value(heap, messages));
    interpreter.set("messages", std::move(conversation));
    interpreter.set("add_generation_prompt", add_generation_prompt);
    // transformers passes None for these if there are none.
    interpreter.set("tools", jinja::None{});
    interpreter.set("documents", jinja::None{});
    return interpreter.render(state_->body);
  };
  auto text = run();
  if (text) return text;
  Error error = std::move(text).error();
  if (error.file.empty()) error.file = state_->origin;
  return error;
}

}  // namespace moracle
