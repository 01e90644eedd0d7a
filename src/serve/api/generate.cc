// POST handlers: completions, chat completions, tokenize.
#include <chrono>

#include "base/text.h"
#include "base/try.h"
#include "serve/api/answer.h"
#include "serve/api/api.h"

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

HttpReply refused(const Error& error, const Exchange& exchange) {
  if (error.kind != ErrorKind::kCancelled) return to_reply(api_error(error));
  if (exchange.left())
    return to_reply({.status = 503, .message = "the server is stopping", .code = "stopping"});
  return to_reply(
      {.message = str("needs a text that is tokenized within ", kMaxTokenizing.count(), " s"),
       .code = "text_too_long"});
}

std::function<void(const Status&)> answer_to(std::shared_ptr<Exchange> exchange) {
  return [exchange = std::move(exchange)](const Status& done) {
    if (done) return exchange->reply({.body = R"({"done":true})"});
    exchange->reply(to_reply(api_error(done.error())));
  };
}

}  // namespace

void Api::completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, false);
}

void Api::chat_completions(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
  generate(request, exchange, true);
}

void Api::generate(const HttpRequest& http, const std::shared_ptr<Exchange>& exchange,
                   bool is_chat) {
  const Result<Value> body = parse_body(http.body);
  if (!body) return exchange->reply(to_reply(api_error(body.error())));
  if (const auto named = body->find("model"); named != body->end() && named->is_string()) {
    const auto& name = named->get_ref<const std::string&>();
    if (name != model_.name && !model_.adapters->find(name))
      return exchange->reply(to_reply(unknown_model(model_.name)));
  }
  const Progress progress = while_wanted(*exchange);
  Result<GenerationRequest> request = is_chat ? read_chat(*body, http.body, model_, progress)
                                              : read_completion(*body, http.body, model_, progress);
  if (!request) return exchange->reply(refused(request.error(), *exchange));
  if (request->schema.empty()) return submit(*request, exchange);
  // Compile on another thread: it can take a second, and other requests must not wait.
  const auto waiting = std::make_shared<GenerationRequest>(*std::move(request));
  const auto compiled = [this, waiting, exchange](const CompiledGrammar& grammar) {
    if (!grammar) {
      ApiError error = api_error(grammar.error());
      error.param = "response_format";
      if (grammar.error().kind == ErrorKind::kCancelled) error.status = 503;
      return exchange->reply(to_reply(error));
    }
    for (Job& job : waiting->jobs) job.grammar = *grammar;
    submit(*waiting, exchange);
  };
  if (grammars_.add(waiting->schema, compiled)) return;
  exchange->reply(to_reply({.status = 429,
                            .message = "too many schemas wait to be compiled; try again later",
                            .code = "queue_full"}));
}

void Api::submit(GenerationRequest& request, const std::shared_ptr<Exchange>& exchange) {
  const auto answer = std::make_shared<Answer>(request, model_.tokenizer, exchange);
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
    const auto cancel = [ids, &engine] {
      for (const SequenceId id : ids) engine.cancel(id);
    };
    answer->set_cancel(cancel);
    exchange->on_leave(cancel);
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
