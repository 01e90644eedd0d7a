// Replies of /v1/completions and /v1/chat/completions.
#pragma once

#include "serve/answers/answer.h"

namespace moracle::serve {

class OpenAiAnswer : public Answer {
 public:
  OpenAiAnswer(const GenerationRequest& request, const Tokenizer& tokenizer,
               std::shared_ptr<Exchange> exchange);

 private:
  // What a choice needs beside its parts.
  struct Extra {
    std::vector<TokenScore> of_prompt, scores;
    bool has_begun = false;
    int64_t text_offset = 0;  // "text_offset" of the next token in logprobs
    size_t num_calls = 0;     // calls in the stream so far
  };
  void send(size_t index, const Event& event, std::span<const AnswerPiece> pieces) override;
  void keep(size_t index, Event&& event) override;
  void send_whole() override;
  void finish_stream() override;
  void send_failure(const ApiError& error) override;

  Json message(const Choice& choice) const;
  Json delta(std::span<const AnswerPiece> pieces, bool is_first, size_t& num_calls) const;
  void send_event(const Json& json);
  Json head(const char* object) const;
  Json usage() const;
  const char* finish_reason(const Choice& choice) const;
  Json completion_scores(Extra& extra, std::span<const TokenScore> of_prompt,
                         std::span<const TokenScore> scores, bool shows_prompt, size_t index) const;
  Json chat_scores(std::span<const TokenScore> scores) const;
  std::string token_text(int32_t id) const;
  /// The token as a JSON string. Incomplete UTF-8 becomes "bytes:\xe2\x82".
  std::string token_key(int32_t id) const;

  const bool is_chat_, include_usage_, echo_, has_scores_;
  const int64_t choices_per_prompt_;
  const std::string id_, model_;
  const std::vector<std::string> prompts_;
  std::vector<int32_t> first_ids_;  // first token of each prompt
  const Tokenizer& tokenizer_;
  std::vector<Extra> extras_;
};

}  // namespace moracle::serve
