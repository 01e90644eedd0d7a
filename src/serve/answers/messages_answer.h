// Replies of /v1/messages, Anthropic's API.
#pragma once

#include "serve/answers/answer.h"

namespace moracle::serve {

class MessagesAnswer : public Answer {
 public:
  MessagesAnswer(const GenerationRequest& request, std::shared_ptr<Exchange> exchange);

 private:
  void send(size_t index, const Event& event, std::span<const AnswerPiece> pieces) override;
  void send_whole() override;
  void finish_stream() override;
  void send_failure(const ApiError& error) override;
  ErrorForm error_form() const override { return ErrorForm::kAnthropic; }

  Json message(Json content) const;
  Json usage() const;
  const char* stop_reason() const;
  Json stop_string() const;
  void start();
  void close_block();
  void send_event(const char* type, Json fields);

  const std::string id_, model_;
  const bool fills_context_;
  int64_t num_blocks_ = 0;
  bool is_block_open_ = false;
};

}  // namespace moracle::serve
