// Handlers of the dialects of generation, and of tokenization.
#include <chrono>

#include "base/text.h"
#include "base/try.h"
#include "serve/answers/answer.h"
#include "serve/api/model_api.h"
#include "serve/dialects/dialects.h"

namespace moracle::serve {
namespace {

using Value = nlohmann::json;
const std::string kBody;

constexpr std::chrono::seconds kMaxTokenizing{10};

// Cancels tokenization after a disconnect or a timeout.
Progress while_wanted(const Exchange& exchange) {
  const auto end = std::chrono::steady_clock::now() + kMaxTokenizing;
  return [&exchange, end](int64_t, int64_t) {
    return !exchange.left() && std::chrono::steady_clock::now() < end;
  };
}

HttpReply refused(const Error& error, const Exchange& exchange,
                  ErrorForm form = ErrorForm::kOpenAi) {
  if (error.kind != ErrorKind::kCancelled) return to_reply(api_error(error), form);
  if (exchange.left())
    return to_reply({.status = 503, .message = "the server is stopping", .code = "stopping"}, form);
  return to_reply(
      {.message = str("needs a text that is tokenized within ", kMaxTokenizing.count(), " s"),
       .code = "text_too_long"},
      form);
}

}  // namespace

Json ModelApi::describe(const std::string& name) const {
  const ToolDialect& dialect = model_.dialect;
  const bool has_chat = model_.chat.has_value();
  const bool has_grammars = model_.grammars != nullptr;
  return {{"id", name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "moracle"},
          {"parent", name == model_.name ? Json() : Json(model_.name)},
          {"max_model_len", model_.max_context},
          {"loaded", true},
          {"capabilities",
           {{"chat", has_chat},
            {"tools", dialect.takes_tools && dialect.format},
            {"tool_choice", dialect.takes_tools && dialect.syntax && has_grammars},
            {"reasoning", model_.reasoning != nullptr},
            {"structured_outputs", has_grammars},
            {"adapters", model_.adapters->may_load()}}}};
}

void ModelApi::completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kCompletions);
}

void ModelApi::chat_completions(const HttpRequest& request,
                                const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kChat);
}

void ModelApi::responses(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kResponses);
}

void ModelApi::messages(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kMessages);
}

std::optional<Value> ModelApi::read_body(const HttpRequest& http,
                                         const std::shared_ptr<Exchange>& exchange) {
  const auto reject = [&](const ApiError& error) {
    exchange->reply(to_reply(error, error_form(http.path)));
    return std::optional<Value>();
  };
  Result<Value> body = parse_body(http.body);
  if (!body) return reject(api_error(body.error()));
  if (const auto named = body->find("model"); named != body->end() && !named->is_null()) {
    const auto name_or = JsonField(*body, kBody)["model"].text();
    if (!name_or) return reject(api_error(name_or.error()));
    const std::string& name = *name_or;
    if (!has(name)) return reject(unknown_model(model_.name));
  }
  return *std::move(body);
}

Result<GenerationRequest> ModelApi::read(Dialect dialect, const Value& body,
                                         const std::string& text, const Progress& progress) const {
  switch (dialect) {
    case Dialect::kCompletions:
      return read_completion(body, text, model_, progress);
    case Dialect::kChat:
      return read_chat(body, text, model_, progress);
    case Dialect::kResponses:
      return read_responses(body, text, model_, shared_.responses, progress);
    default:
      return read_messages(body, text, model_, progress);
  }
}

void ModelApi::generate(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange,
                        Dialect dialect) {
  const ErrorForm form = error_form(http.path);
  const std::optional<Value> body = read_body(http, exchange);
  if (!body) return;
  Result<GenerationRequest> request = read(dialect, *body, http.body, while_wanted(*exchange));
  if (!request) return exchange->reply(refused(request.error(), *exchange, form));
  if (request->grammar.empty()) return submit(*request, exchange);
  // Compile on another thread: it can take a second, and other requests must not wait.
  const auto waiting = std::make_shared<GenerationRequest>(*std::move(request));
  const auto compiled = [this, waiting, exchange, form](const CompiledGrammar& grammar) {
    if (!grammar) {
      ApiError error = api_error(grammar.error());
      error.param = waiting->grammar.place;
      if (grammar.error().kind == ErrorKind::kCancelled) error.status = 503;
      return exchange->reply(to_reply(error, form));
    }
    for (Job& job : waiting->jobs) {
      job.grammar = *grammar;
      job.grammar_place = waiting->grammar.place;
    }
    submit(*waiting, exchange);
  };
  if (grammars_.add(waiting->grammar, compiled)) return;
  exchange->reply(to_reply({.status = 429,
                            .message = "too many schemas wait to be compiled; try again later",
                            .code = "queue_full"},
                           form));
}

void ModelApi::count_tokens(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const std::optional<Value> value = read_body(http, exchange);
  if (!value) return;
  const auto ids = [&]() -> Result<std::vector<int32_t>> {
    const JsonField body(*value, kBody);
    MORACLE_TRY(const ChatPrompt prompt, read_messages_prompt(body, http.body, model_));
    return model_.tokenizer.encode(prompt.text, while_wanted(*exchange));
  }();
  if (!ids) return exchange->reply(refused(ids.error(), *exchange, ErrorForm::kAnthropic));
  exchange->reply({.body = dump({{"input_tokens", ids->size()}})});
}

void ModelApi::submit(GenerationRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const auto answer = Answer::make(request, model_.tokenizer, exchange, shared_.responses);
  std::vector<std::vector<Job>> prompts;  // jobs of each prompt, one per choice
  for (size_t i = 0; i < request.jobs.size(); ++i) {
    Job& job = request.jobs[i];
    job.time_limit = shared_.request_seconds;
    job.sink = [answer, exchange, i, &events = shared_.events](Event&& event) {
      events.add(answer, exchange, i, std::move(event));
    };
    if (i % request.choices == 0) prompts.emplace_back();
    prompts.back().push_back(std::move(job));
  }
  std::vector<SequenceId> ids;
  for (std::vector<Job>& choices : prompts) {
    for (const SequenceId id : engine_.submit(std::move(choices))) ids.push_back(id);
  }
  shared_.events.flush();  // rejections of a stopped engine
  exchange->post([answer, exchange, ids = std::move(ids), &engine = engine_] {
    answer->set_cancel([ids, &engine](size_t index) { engine.cancel(ids[index]); });
    exchange->on_leave([ids, &engine] {
      for (const SequenceId id : ids) engine.cancel(id);
    });
  });
}

void ModelApi::tokenize(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const Progress progress = while_wanted(*exchange);
  const auto ids = [&]() -> Result<std::vector<int32_t>> {
    MORACLE_TRY(const Value value, parse_body(http.body));
    const JsonField body(value, kBody);
    if (!body["messages"].is_null()) {
      MORACLE_TRY(const ChatPrompt prompt, read_chat_prompt(body, http.body, model_));
      return model_.tokenizer.encode(prompt.text, progress);
    }
    MORACLE_TRY(const std::string text, body["prompt"].text());
    MORACLE_TRY(const bool special, body["add_special_tokens"].flag_or(true));
    return special ? model_.tokenizer.encode_prompt(text, progress)
                   : model_.tokenizer.encode(text, progress);
  }();
  if (!ids) return exchange->reply(refused(ids.error(), *exchange));
  exchange->reply(
      {.body = dump(
           {{"count", ids->size()}, {"max_model_len", model_.max_context}, {"tokens", *ids}})});
}

void ModelApi::detokenize(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto text = [&]() -> Result<std::string> {
    MORACLE_TRY(const Value value, parse_body(http.body));
    MORACLE_TRY(const auto ids, read_token_ids(JsonField(value, kBody)["tokens"]));
    return model_.tokenizer.decode(ids);
  }();
  if (!text) return exchange->reply(to_reply(api_error(text.error())));
  exchange->reply({.body = dump({{"prompt", *text}})});
}

}  // namespace moracle::serve
