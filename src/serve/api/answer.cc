#include "serve/api/answer.h"

#include <chrono>
#include <random>

#include "base/text.h"

namespace moracle::serve {
namespace {

std::string new_id(bool is_chat) {
  static thread_local std::mt19937_64 random(std::random_device{}());
  std::ostringstream out;
  out << (is_chat ? "chatcmpl-" : "cmpl-") << std::hex << random() << random();
  return std::move(out).str();
}

ApiError error_of(const Event& event) {
  switch (event.finish) {
    case Finish::kQueueFull:
      return {.status = 429, .message = "the queue is full; try again later", .code = "queue_full"};
    case Finish::kTooLong:
      return {
          .status = 400,
          .message =
              "prompt and new tokens need more KV cache pages than the server has (--cache-bytes)",
          .code = "context_length_exceeded"};
    case Finish::kTimeout:
      return {.status = 504, .message = "the request exceeded its time limit", .code = "timeout"};
    case Finish::kStopping:
      return {.status = 503,
              .message = event.message.empty() ? "the server is stopping" : event.message,
              .code = "stopping"};
    case Finish::kUnloaded:
      return {.status = 404,
              .message = "the adapter was unloaded before the request started",
              .param = "model",
              .code = "model_not_found"};
    default:
      return {.status = 500, .message = event.message};
  }
}

Json call_json(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

Answer::Answer(const GenerationRequest& request, const Tokenizer& tokenizer,
               std::shared_ptr<Exchange> exchange)
    : is_chat_(request.is_chat),
      stream_(request.stream),
      include_usage_(request.include_usage),
      echo_(request.echo),
      has_scores_(request.jobs[0].num_top.has_value()),
      choices_per_prompt_(request.choices),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      id_(new_id(request.is_chat)),
      model_(request.model),
      prompts_(request.prompts),
      tools_(request.tools),
      tokenizer_(tokenizer),
      exchange_(std::move(exchange)),
      choices_(request.jobs.size()) {
  for (const Job& job : request.jobs) first_ids_.push_back(job.prompt[0]);
  if (!tools_) return;
  for (Choice& choice : choices_) choice.reader.emplace(tools_->format, tools_->tools);
}

void Answer::take(size_t index, Event&& event) {
  if (failed_) return;
  if (event.finish > Finish::kLength) return fail(error_of(event));
  Choice& choice = choices_[index];
  choice.prompt_tokens = event.prompt_tokens;
  choice.new_tokens = event.new_tokens;
  choice.reused_tokens = event.reused_tokens;
  if (event.finish != Finish::kNone) {
    choice.finish = event.finish == Finish::kStop ? "stop" : "length";
    ++num_finished_;
  }
  if (choice.reader) take_calls(choice, event);
  if (stream_) {
    send_chunk(index, event);
  } else {
    choice.text += event.text;
    for (TokenScore& score : event.of_prompt) choice.of_prompt.push_back(std::move(score));
    for (TokenScore& score : event.scores) choice.scores.push_back(std::move(score));
  }
  if (num_finished_ < choices_.size()) return;
  stream_ ? finish_stream() : send_whole();
}

// Moves tool calls from the event's text into the choice.
void Answer::take_calls(Choice& choice, Event& event) {
  const auto add = [&](ToolCallParser::Delta delta) {
    for (ToolCall& call : delta.calls) choice.calls.push_back(std::move(call));
    return std::move(delta.text);
  };
  event.text = add(choice.reader->push(event.text));
  if (event.finish == Finish::kNone) return;
  event.text += add(choice.reader->finish(event.finish == Finish::kStop));
  if (event.finish == Finish::kStop && !choice.calls.empty()) choice.finish = "tool_calls";
}

void Answer::fail(const ApiError& error) {
  failed_ = true;
  if (started_) {
    send_event(to_json(error));
    exchange_->end();
  } else {
    exchange_->reply(to_reply(error));
  }
  if (cancel_) cancel_();
}

void Answer::set_cancel(std::function<void()> cancel) {
  cancel_ = std::move(cancel);
  if (failed_) cancel_();
}

Json Answer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
}

Json Answer::usage() const {
  int64_t prompt = 0, made = 0, reused = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    made += choices_[i].new_tokens;
    if (i % choices_per_prompt_ != 0) continue;
    prompt += choices_[i].prompt_tokens;
    reused += choices_[i].reused_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", made},
          {"total_tokens", prompt + made},
          {"prompt_tokens_details", {{"cached_tokens", reused}}}};
}

std::string Answer::token_text(int32_t id) const {
  const auto text = tokenizer_.decode({&id, 1});
  return text ? *text : std::string();
}

Json Answer::message(const Choice& choice) const {
  Json message = {{"role", "assistant"}, {"content", choice.text}};
  if (choice.calls.empty()) return message;
  if (choice.text.empty()) message["content"] = nullptr;
  for (const ToolCall& call : choice.calls) message["tool_calls"].push_back(call_json(call));
  return message;
}

Json Answer::delta(Choice& choice, const Event& event, bool is_first) const {
  Json delta = Json::object();
  if (is_first) delta["role"] = "assistant";
  if (is_first || !event.text.empty()) delta["content"] = event.text;
  for (size_t& i = choice.num_sent_calls; i < choice.calls.size(); ++i) {
    Json call = {{"index", i}};
    call.update(call_json(choice.calls[i]));
    delta["tool_calls"].push_back(std::move(call));
  }
  return delta;
}

void Answer::send_whole() {
  Json json = head(is_chat_ ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    Json each = {{"index", i}};
    if (is_chat_)
      each["message"] = message(choice);
    else
      each["text"] = echo_ ? prompts_[i / choices_per_prompt_] + choice.text : choice.text;
    each["logprobs"] = nullptr;
    if (has_scores_) {
      each["logprobs"] = is_chat_
                             ? chat_scores(choice.scores)
                             : completion_scores(choice, choice.of_prompt, choice.scores, echo_, i);
    }
    each["finish_reason"] = choice.finish;
    json["choices"].push_back(std::move(each));
  }
  json["usage"] = usage();
  exchange_->reply({.body = dump(json)});
}

void Answer::send_event(const Json& json) {
  exchange_->write("data: " + dump(json) + "\n\n");
}

void Answer::send_chunk(size_t index, const Event& event) {
  if (!started_) exchange_->start_stream({.type = "text/event-stream"});
  started_ = true;
  Choice& choice = choices_[index];
  const bool is_first = !std::exchange(choice.shown_prompt, true);
  const bool says_nothing = event.text.empty() && event.finish == Finish::kNone &&
                            choice.num_sent_calls == choice.calls.size() && !has_scores_;
  if (says_nothing && !is_first) return;
  Json json = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
  Json each = {{"index", index}};
  if (is_chat_) {
    each["delta"] = delta(choice, event, is_first);
  } else {
    each["text"] =
        echo_ && is_first ? prompts_[index / choices_per_prompt_] + event.text : event.text;
  }
  each["logprobs"] = nullptr;
  if (has_scores_) {
    each["logprobs"] = is_chat_ ? chat_scores(event.scores)
                                : completion_scores(choice, event.of_prompt, event.scores,
                                                    echo_ && is_first, index);
  }
  each["finish_reason"] = choice.finish.empty() ? Json() : Json(choice.finish);
  json["choices"] = Json::array({std::move(each)});
  if (include_usage_) json["usage"] = nullptr;
  send_event(json);
}

void Answer::finish_stream() {
  if (include_usage_) {
    Json json = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage();
    send_event(json);
  }
  exchange_->write("data: [DONE]\n\n");
  exchange_->end();
}

}  // namespace moracle::serve
