// Converts the engine's events of a completion into JSON, as one reply or as server-sent events.
#pragma once

#include <memory>

#include "serve/api/api_error.h"
#include "serve/api/generation_request.h"
#include "serve/tools/tool_call_parser.h"

namespace moracle::serve {

/// All functions run on the I/O thread.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  /// `tokenizer` must outlive this object.
  Answer(const GenerationRequest& request, const Tokenizer& tokenizer,
         std::shared_ptr<Exchange> exchange);
  /// Handles an event of choice `index`.
  void take(size_t index, Event&& event);
  /// `cancel` stops the other choices after an error.
  void set_cancel(std::function<void()> cancel);

 private:
  struct Choice {
    std::string text, finish;
    std::vector<TokenScore> of_prompt, scores;
    int64_t prompt_tokens = 0, new_tokens = 0, reused_tokens = 0;
    std::optional<ToolCallParser> reader;  // set if the request has tools
    std::vector<ToolCall> calls;
    size_t num_sent_calls = 0;
    bool shown_prompt = false;
    int64_t text_offset = 0;  // "text_offset" of the next token in logprobs
  };
  void fail(const ApiError& error);
  void take_calls(Choice& choice, Event& event);
  Json message(const Choice& choice) const;
  Json delta(Choice& choice, const Event& event, bool is_first) const;
  void send_chunk(size_t index, const Event& event);
  void send_whole();
  void finish_stream();
  void send_event(const Json& json);
  Json head(const char* object) const;
  Json usage() const;
  Json completion_scores(Choice& choice, std::span<const TokenScore> of_prompt,
                         std::span<const TokenScore> scores, bool shows_prompt, size_t index) const;
  Json chat_scores(std::span<const TokenScore> scores) const;
  std::string token_text(int32_t id) const;
  /// The token as a JSON string. Incomplete UTF-8 becomes "bytes:\xe2\x82".
  std::string token_key(int32_t id) const;

  const bool is_chat_, stream_, include_usage_, echo_, has_scores_;
  const int64_t choices_per_prompt_, created_;
  const std::string id_, model_;
  std::vector<std::string> prompts_;
  const std::shared_ptr<const ToolUse> tools_;
  std::vector<int32_t> first_ids_;  // first token of each prompt
  const Tokenizer& tokenizer_;
  const std::shared_ptr<Exchange> exchange_;
  std::function<void()> cancel_;
  std::vector<Choice> choices_;
  size_t num_finished_ = 0;
  bool started_ = false, failed_ = false;
};

}  // namespace moracle::serve
