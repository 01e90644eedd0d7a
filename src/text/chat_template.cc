// ChatTemplate: passes conversations to the renderer in jinja/.
#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "moracle/text.h"
#include "text/chat_files.h"
#include "text/chat_values.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/syntax/parser.h"

namespace moracle {
struct ChatTemplate::State {
  // A parsed template, and its file for errors.
  struct Template {
    static Result<Template> parse(const std::string& text, std::string origin);
    std::string origin;
    jinja::Body body;
  };
  std::map<std::string, std::string> special_tokens;
  Template always;
  // Template for conversations with tools. Report its parse error only for such conversations.
  std::optional<Result<Template>> with_tools;

  // `set` defines the template's variables.
  template <class Set>
  Result<std::string> render(const Template& chosen, bool add_generation_prompt,
                             const Set& set) const {
    jinja::Interpreter interpreter;
    const auto run = [&]() -> Result<std::string> {
      for (const auto& [name, token] : special_tokens) {
        MORACLE_TRY(jinja::Value value, interpreter.heap().text(token));
        interpreter.set(name, std::move(value));
      }
      // transformers passes None for absent tools and documents.
      interpreter.set("tools", jinja::None{});
      interpreter.set("documents", jinja::None{});
      MORACLE_CHECK(set(interpreter));
      interpreter.set("add_generation_prompt", add_generation_prompt);
      return interpreter.render(chosen.body);
    };
    auto text = run();
    if (text) return text;
    Error error = std::move(text).error();
    if (error.file.empty()) error.file = chosen.origin;
    return error;
  }
};

Result<ChatTemplate::State::Template> ChatTemplate::State::Template::parse(const std::string& text,
                                                                           std::string origin) {
  const auto fail = [&](Error error) {
    error.file = origin;
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
  return Template{std::move(origin), *std::move(body)};
}

ChatTemplate::ChatTemplate(std::unique_ptr<const State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::open(const std::string& folder) {
  MORACLE_TRY(ChatFiles files, read_chat_files(folder));
  auto state = std::make_unique<State>();
  state->special_tokens = std::move(files.special_tokens);
  MORACLE_TRY(state->always, State::Template::parse(files.text, files.origin));
  if (!files.tools_text.empty())
    state->with_tools = State::Template::parse(files.tools_text, files.tools_origin);
  return ChatTemplate(std::move(state));
}

Result<ChatTemplate> ChatTemplate::parse(std::string text, std::string origin,
                                         std::map<std::string, std::string> special_tokens) {
  auto state = std::make_unique<State>();
  state->special_tokens = std::move(special_tokens);
  MORACLE_TRY(state->always, State::Template::parse(text, std::move(origin)));
  return ChatTemplate(std::move(state));
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool add_generation_prompt) const {
  const auto set = [&](jinja::Interpreter& interpreter) -> Status {
    MORACLE_TRY(jinja::Value conversation, to_value(interpreter.heap(), messages));
    interpreter.set("messages", std::move(conversation));
    return {};
  };
  return state_->render(state_->always, add_generation_prompt, set);
}

Result<std::string> ChatTemplate::render_json(const ChatConversation& conversation,
                                              bool add_generation_prompt) const {
  using Type = nlohmann::ordered_json::value_t;
  MORACLE_TRY(auto messages, parse_chat_json(conversation.messages, "messages", Type::array));
  name_reasoning(messages);
  nlohmann::ordered_json tools, variables;
  if (!conversation.tools.empty()) {
    MORACLE_TRY(tools, parse_chat_json(conversation.tools, "tools", Type::array));
  }
  if (!conversation.variables.empty()) {
    MORACLE_TRY(variables, parse_chat_json(conversation.variables, "variables", Type::object));
  }
  const auto set = [&](jinja::Interpreter& interpreter) -> Status {
    for (const auto& [name, json] : variables.items()) {
      MORACLE_TRY(jinja::Value value, to_value(interpreter.heap(), json));
      interpreter.set(name, std::move(value));
    }
    MORACLE_TRY(jinja::Value all, to_value(interpreter.heap(), messages));
    interpreter.set("messages", std::move(all));
    MORACLE_TRY(jinja::Value offered, to_value(interpreter.heap(), tools));
    interpreter.set("tools", std::move(offered));
    return {};
  };
  if (tools.is_null() || !state_->with_tools)
    return state_->render(state_->always, add_generation_prompt, set);
  if (!*state_->with_tools) return state_->with_tools->error();
  return state_->render(**state_->with_tools, add_generation_prompt, set);
}

}  // namespace moracle
