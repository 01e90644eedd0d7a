// POST handlers: the dialects of generation, tokenize, adapters.
#include <chrono>

#include "base/text.h"
#include "base/try.h"
#include "serve/answers/answer.h"
#include "serve/api/api.h"
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

std::function<void(const Status&)> answer_to(std::shared_ptr<Exchange> exchange) {
  return [exchange = std::move(exchange)](const Status& done) {
    if (done) return exchange->reply({.body = R"({"done":true})"});
    exchange->reply(to_reply(api_error(done.error())));
  };
}

}  // namespace

void Api::completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kCompletions);
}

void Api::chat_completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kChat);
}

void Api::responses(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kResponses);
}

void Api::messages(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, Dialect::kMessages);
}

std::optional<Value> Api::read_body(const HttpRequest& http,
                                    const std::shared_ptr<Exchange>& exchange) {
  const auto reject = [&](const ApiError& error) {
    exchange->reply(to_reply(error, error_form(http.path)));
    return std::optional<Value>();
  };
  Result<Value> body = parse_body(http.body);
  if (!body) return reject(api_error(body.error()));
  if (const auto named = body->find("model"); named != body->end() && named->is_string()) {
    const auto& name = named->get_ref<const std::string&>();
    if (name != model_.name && !model_.adapters->find(name))
      return reject(unknown_model(model_.name));
  }
  return *std::move(body);
}

Result<GenerationRequest> Api::read(Dialect dialect, const Value& body, const std::string& text,
                                    const Progress& progress) const {
  switch (dialect) {
    case Dialect::kCompletions:
      return read_completion(body, text, model_, progress);
    case Dialect::kChat:
      return read_chat(body, text, model_, progress);
    case Dialect::kResponses:
      return read_responses(body, text, model_, responses_, progress);
    default:
      return read_messages(body, text, model_, progress);
  }
}

void Api::generate(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange,
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
      error.param = waiting->grammar.kind == GrammarText::Kind::kStructuralTag ? "tools"
                    : waiting->dialect == Dialect::kResponses                  ? "text.format"
                                                                               : "response_format";
      if (grammar.error().kind == ErrorKind::kCancelled) error.status = 503;
      return exchange->reply(to_reply(error, form));
    }
    for (Job& job : waiting->jobs) job.grammar = *grammar;
    submit(*waiting, exchange);
  };
  if (grammars_.add(waiting->grammar, compiled)) return;
  exchange->reply(to_reply({.status = 429,
                            .message = "too many schemas wait to be compiled; try again later",
                            .code = "queue_full"},
                           form));
}

void Api::count_tokens(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
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

void Api::submit(GenerationRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const auto answer = Answer::make(request, model_.tokenizer, exchange, responses_);
  std::vector<std::vector<Job>> prompts;  // jobs of each prompt, one per choice
  for (size_t i = 0; i < request.jobs.size(); ++i) {
    Job& job = request.jobs[i];
    job.time_limit = options_.request_seconds;
    job.sink = [answer, exchange, i, &events = events_](Event&& event) {
      events.add(answer, exchange, i, std::move(event));
    };
    if (i % request.choices == 0) prompts.emplace_back();
    prompts.back().push_back(std::move(job));
  }
  std::vector<SequenceId> ids;
  for (std::vector<Job>& choices : prompts) {
    for (const SequenceId id : engine_.submit(std::move(choices))) ids.push_back(id);
  }
  events_.flush();  // rejections of a stopped engine
  exchange->post([answer, exchange, ids = std::move(ids), &engine = engine_] {
    answer->set_cancel([ids, &engine](size_t index) { engine.cancel(ids[index]); });
    exchange->on_leave([ids, &engine] {
      for (const SequenceId id : ids) engine.cancel(id);
    });
  });
}

void Api::tokenize(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
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

void Api::detokenize(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto text = [&]() -> Result<std::string> {
    MORACLE_TRY(const Value value, parse_body(http.body));
    MORACLE_TRY(const auto ids, read_token_ids(JsonField(value, kBody)["tokens"]));
    return model_.tokenizer.decode(ids);
  }();
  if (!text) return exchange->reply(to_reply(api_error(text.error())));
  exchange->reply({.body = dump({{"prompt", *text}})});
}

void Api::load_adapter(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto read = [&]() -> Status {
    MORACLE_TRY(const Value value, parse_body(http.body));
    const JsonField body(value, kBody);
    MORACLE_TRY(const std::string name, body["lora_name"].text());
    MORACLE_TRY(const std::string path, body["lora_path"].text());
    if (name == model_.name) return body["lora_name"].bad("a name other than the model's");
    model_.adapters->load(name, path, model_.options, model_.folder, engine_, answer_to(exchange));
    return {};
  };
  if (const Status done = read(); !done) exchange->reply(to_reply(api_error(done.error())));
}

void Api::unload_adapter(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange) {
  const auto read = [&]() -> Status {
    MORACLE_TRY(const Value value, parse_body(http.body));
    MORACLE_TRY(const std::string name, JsonField(value, kBody)["lora_name"].text());
    return model_.adapters->unload(name, engine_);
  };
  answer_to(exchange)(read());
}

}  // namespace moracle::serve
