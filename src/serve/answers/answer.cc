#include "serve/answers/answer.h"

#include <chrono>
#include <iomanip>
#include <random>
#include <sstream>

namespace moracle::serve {
namespace {

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
    case Finish::kForbidden:
      return {.status = 400, .message = event.message, .code = "no_token_allowed"};
    default:
      return {.status = 500, .message = event.message};
  }
}

void add_pieces(std::span<const AnswerPiece> pieces, std::vector<AnswerPart>& parts) {
  for (const AnswerPiece& piece : pieces) {
    if (piece.begins) parts.push_back({piece.kind, {}, piece.id, piece.name});
    parts.back().text += piece.text;
  }
}

}  // namespace

std::string new_id(const char* prefix) {
  // The id of a stored response grants access to it, so ids must not predict each other.
  static thread_local std::random_device random;
  std::ostringstream out;
  out << prefix << std::hex << std::setfill('0');
  for (int i = 0; i < 4; ++i) out << std::setw(8) << random();
  return std::move(out).str();
}

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Answer::Answer(const GenerationRequest& request, std::shared_ptr<Exchange> exchange)
    : choices_(request.jobs.size(), Choice(request.form)),
      stream_(request.stream),
      log_model_(request.model),
      created_(seconds_now()),
      exchange_(std::move(exchange)) {}

void Answer::take(size_t index, Event&& event) {
  Choice& choice = choices_[index];
  if (failed_ || choice.finish != Finish::kNone) return;
  choice.prompt_tokens = event.prompt_tokens;
  choice.new_tokens = event.new_tokens;
  choice.reused_tokens = event.reused_tokens;
  if (event.finish > Finish::kLength) return fail(error_of(event));
  const bool was_reasoning = choice.reader.is_reasoning();
  std::vector<AnswerPiece> pieces = choice.reader.push(event.text);
  if (was_reasoning || choice.reader.is_reasoning()) choice.reasoning_tokens = event.new_tokens;
  if (choice.reader.is_complete() && event.finish == Finish::kNone) {
    cancel(index);
    event.finish = Finish::kStop;
  }
  if (event.finish != Finish::kNone) {
    choice.finish = event.finish;
    choice.stop_string = event.stop_string;
    choice.reader.finish(event.finish == Finish::kStop, pieces);
    ++num_finished_;
  }
  choice.has_calls = choice.reader.has_calls();
  add_pieces(pieces, choice.parts);
  if (stream_)
    send(index, event, pieces);
  else
    keep(index, std::move(event));
  if (num_finished_ < choices_.size()) return;
  log_usage();
  stream_ ? finish_stream() : send_whole();
}

void Answer::log_usage() {
  int64_t new_tokens = 0, reasoning = 0;
  Json reasons = Json::array();
  for (const Choice& choice : choices_) {
    new_tokens += choice.new_tokens;
    reasoning += choice.reasoning_tokens;
    reasons.push_back(choice.finish == Finish::kNone     ? "error"
                      : choice.finish == Finish::kLength ? "length"
                      : choice.has_calls                 ? "tool_calls"
                                                         : "stop");
  }
  exchange_->log("model", dump(log_model_));
  exchange_->log("stream", stream_ ? "true" : "false");
  exchange_->log("prompt_tokens", std::to_string(choices_[0].prompt_tokens));
  exchange_->log("cached_tokens", std::to_string(choices_[0].reused_tokens));
  exchange_->log("completion_tokens", std::to_string(new_tokens));
  exchange_->log("reasoning_tokens", std::to_string(reasoning));
  exchange_->log("finish_reasons", dump(reasons));
}

bool Answer::start_stream() {
  if (!started_) exchange_->start_stream({.type = "text/event-stream"});
  return !std::exchange(started_, true);
}

void Answer::fail(const ApiError& error) {
  failed_ = true;
  if (started_) {
    log_usage();
    exchange_->log("error_code", dump(error.code));
    send_failure(error);
    exchange_->end();
  } else {
    exchange_->log("model", dump(log_model_));
    exchange_->reply(to_reply(error, error_form()));
  }
  for (size_t i = 0; i < choices_.size(); ++i) cancel(i);
}

void Answer::cancel(size_t index) {
  if (cancel_) return cancel_(index);
  to_cancel_.push_back(index);
}

void Answer::set_cancel(std::function<void(size_t)> cancel) {
  cancel_ = std::move(cancel);
  for (const size_t index : std::exchange(to_cancel_, {})) cancel_(index);
}

}  // namespace moracle::serve
