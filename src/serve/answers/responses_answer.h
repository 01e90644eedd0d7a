// Replies of /v1/responses.
#pragma once

#include "serve/answers/answer.h"

namespace moracle::serve {

class ResponsesAnswer : public Answer {
 public:
  ResponsesAnswer(GenerationRequest& request, std::shared_ptr<Exchange> exchange,
                  ResponseStore& store);

 private:
  void send(size_t index, const Event& event, std::span<const AnswerPiece> pieces) override;
  void send_whole() override;
  void finish_stream() override;
  void send_failure(const ApiError& error) override;

  // The part at `index` as an item. An open item has no text yet.
  Json item(size_t index, bool is_open) const;
  Json output() const;
  Json reply(const char* status, Json output) const;
  // The reply to the complete request.
  Json final_reply() const;
  const char* final_status() const;
  Json usage() const;
  void store(const Json& reply);
  void start();
  void open_item(const AnswerPiece& piece);
  void send_delta(const AnswerPiece& piece);
  void close_item();
  void send_event(const char* type, Json fields);

  const std::string id_, model_;
  const Json reply_fields_;
  Json items_;  // input items, to store; null: not stored
  ResponseStore& store_;
  std::vector<std::string> item_ids_;  // of parts
  bool is_item_open_ = false;
  int64_t num_events_ = 0;
};

}  // namespace moracle::serve
