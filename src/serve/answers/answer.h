// Turns the engine's events of a request into a reply: whole, or as server-sent events. Each
// dialect has its own class.
#pragma once

#include <memory>

#include "serve/answers/answer_reader.h"
#include "serve/dialects/generation_request.h"
#include "serve/dialects/response_store.h"
#include "serve/http/http.h"

namespace moracle::serve {

/// All functions run on the I/O thread.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  /// `tokenizer` and `store` must outlive the answer.
  static std::shared_ptr<Answer> make(GenerationRequest& request, const Tokenizer& tokenizer,
                                      std::shared_ptr<Exchange> exchange, ResponseStore& store);
  virtual ~Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  /// Handles an event of choice `index`.
  void take(size_t index, Event&& event);
  /// `cancel` stops a choice.
  void set_cancel(std::function<void(size_t index)> cancel);

 protected:
  struct Choice {
    explicit Choice(const AnswerForm& form) : reader(form) {}
    AnswerReader reader;
    std::vector<AnswerPart> parts;
    Finish finish = Finish::kNone;
    bool has_calls = false;
    std::string stop_string;
    int64_t prompt_tokens = 0, new_tokens = 0, reused_tokens = 0, reasoning_tokens = 0;
  };

  Answer(const GenerationRequest& request, std::shared_ptr<Exchange> exchange);
  /// Sends the pieces of an event as a part of a stream.
  virtual void send(size_t index, const Event& event, std::span<const AnswerPiece> pieces) = 0;
  /// Keeps what a whole reply needs beside the parts.
  virtual void keep(size_t, Event&&) {}
  virtual void send_whole() = 0;
  virtual void finish_stream() = 0;
  /// Reports an error in a started stream, with the usage up to it.
  virtual void send_failure(const ApiError& error) = 0;
  virtual ErrorForm error_form() const { return ErrorForm::kOpenAi; }

  /// Starts the stream at the first call. True: it was the first.
  bool start_stream();
  Exchange& exchange() const { return *exchange_; }
  int64_t created() const { return created_; }

  std::vector<Choice> choices_;

 private:
  void fail(const ApiError& error);
  void cancel(size_t index);
  void log_usage();

  const bool stream_;
  const std::string log_model_;
  const int64_t created_;
  const std::shared_ptr<Exchange> exchange_;
  std::function<void(size_t)> cancel_;
  std::vector<size_t> to_cancel_;  // before set_cancel()
  size_t num_finished_ = 0;
  bool started_ = false, failed_ = false;
};

/// A random id.
std::string new_id(const char* prefix);
/// Seconds since 1970.
int64_t seconds_now();

}  // namespace moracle::serve
