#include "serve/answers/openai_answer.h"

#include <algorithm>

namespace moracle::serve {
namespace {

using PartKind = AnswerPart::Kind;

std::string text_of(std::span<const AnswerPart> parts, PartKind kind) {
  std::string text;
  for (const AnswerPart& part : parts) {
    if (part.kind == kind) text += part.text;
  }
  return text;
}

}  // namespace

OpenAiAnswer::OpenAiAnswer(const GenerationRequest& request, const Tokenizer& tokenizer,
                           std::shared_ptr<Exchange> exchange)
    : Answer(request, std::move(exchange)),
      is_chat_(request.dialect == Dialect::kChat),
      include_usage_(request.include_usage),
      echo_(request.echo),
      has_scores_(request.jobs[0].num_top.has_value()),
      choices_per_prompt_(request.choices),
      id_(new_id(is_chat_ ? "chatcmpl-" : "cmpl-")),
      model_(request.model),
      prompts_(request.prompts),
      tokenizer_(tokenizer),
      extras_(request.jobs.size()) {
  for (const Job& job : request.jobs) first_ids_.push_back(job.prompt[0]);
}

void OpenAiAnswer::keep(size_t index, Event&& event) {
  Extra& extra = extras_[index];
  for (TokenScore& score : event.of_prompt) extra.of_prompt.push_back(std::move(score));
  for (TokenScore& score : event.scores) extra.scores.push_back(std::move(score));
}

Json OpenAiAnswer::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created()}, {"model", model_}};
}

Json OpenAiAnswer::usage() const {
  int64_t prompt = 0, made = 0, reused = 0, reasoning = 0;
  for (size_t i = 0; i < choices_.size(); ++i) {
    made += choices_[i].new_tokens;
    reasoning += choices_[i].reasoning_tokens;
    if (i % choices_per_prompt_ != 0) continue;
    prompt += choices_[i].prompt_tokens;
    reused += choices_[i].reused_tokens;
  }
  Json usage = {{"prompt_tokens", prompt},
                {"completion_tokens", made},
                {"total_tokens", prompt + made},
                {"prompt_tokens_details", {{"cached_tokens", reused}}}};
  if (is_chat_) usage["completion_tokens_details"] = {{"reasoning_tokens", reasoning}};
  return usage;
}

const char* OpenAiAnswer::finish_reason(const Choice& choice) const {
  if (choice.finish == Finish::kLength) return "length";
  return choice.has_calls ? "tool_calls" : "stop";
}

std::string OpenAiAnswer::token_text(int32_t id) const {
  const auto text = tokenizer_.decode({&id, 1});
  return text ? *text : std::string();
}

Json OpenAiAnswer::message(const Choice& choice) const {
  const std::string text = text_of(choice.parts, PartKind::kText);
  Json message = {{"role", "assistant"}, {"content", text}};
  if (std::string reasoning = text_of(choice.parts, PartKind::kReasoning); !reasoning.empty())
    message["reasoning_content"] = std::move(reasoning);
  if (choice.has_calls && text.empty()) message["content"] = nullptr;
  for (const AnswerPart& part : choice.parts) {
    if (part.kind != PartKind::kCall) continue;
    message["tool_calls"].push_back(
        {{"id", part.id},
         {"type", "function"},
         {"function", {{"name", part.name}, {"arguments", part.text}}}});
  }
  return message;
}

Json OpenAiAnswer::delta(std::span<const AnswerPiece> pieces, bool is_first,
                         size_t& num_calls) const {
  Json delta = Json::object();
  if (is_first) delta["role"] = "assistant";
  if (is_first) delta["content"] = "";
  const auto add = [&](const char* key, const std::string& text) {
    if (!delta.contains(key)) delta[key] = "";
    delta[key].get_ref<std::string&>() += text;
  };
  for (const AnswerPiece& piece : pieces) {
    if (piece.kind == PartKind::kText) add("content", piece.text);
    if (piece.kind == PartKind::kReasoning) add("reasoning_content", piece.text);
    if (piece.kind != PartKind::kCall) continue;
    if (piece.begins) {
      delta["tool_calls"].push_back(
          {{"index", num_calls++},
           {"id", piece.id},
           {"type", "function"},
           {"function", {{"name", piece.name}, {"arguments", piece.text}}}});
    } else {
      delta["tool_calls"].push_back(
          {{"index", num_calls - 1}, {"function", {{"arguments", piece.text}}}});
    }
  }
  return delta;
}

void OpenAiAnswer::send_whole() {
  Json json = head(is_chat_ ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    Extra& extra = extras_[i];
    Json each = {{"index", i}};
    if (is_chat_) {
      each["message"] = message(choice);
    } else {
      const std::string text = text_of(choice.parts, PartKind::kText);
      each["text"] = echo_ ? prompts_[i / choices_per_prompt_] + text : text;
    }
    each["logprobs"] = nullptr;
    if (has_scores_) {
      each["logprobs"] = is_chat_
                             ? chat_scores(extra.scores)
                             : completion_scores(extra, extra.of_prompt, extra.scores, echo_, i);
    }
    each["finish_reason"] = finish_reason(choice);
    json["choices"].push_back(std::move(each));
  }
  json["usage"] = usage();
  exchange().reply({.body = dump(json)});
}

void OpenAiAnswer::send_event(const Json& json) {
  exchange().write("data: " + dump(json) + "\n\n");
}

void OpenAiAnswer::send_failure(const ApiError& error) {
  Json json = to_json(error);
  json["usage"] = usage();
  send_event(json);
}

void OpenAiAnswer::send(size_t index, const Event& event, std::span<const AnswerPiece> pieces) {
  start_stream();
  Extra& extra = extras_[index];
  const bool is_first = !std::exchange(extra.has_begun, true);
  const bool is_silent = pieces.empty() && event.finish == Finish::kNone && !has_scores_;
  if (is_silent && !is_first) return;
  Json json = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
  Json each = {{"index", index}};
  if (is_chat_) {
    each["delta"] = delta(pieces, is_first, extra.num_calls);
  } else {
    std::string text = echo_ && is_first ? prompts_[index / choices_per_prompt_] : "";
    for (const AnswerPiece& piece : pieces) text += piece.text;
    each["text"] = std::move(text);
  }
  each["logprobs"] = nullptr;
  if (has_scores_) {
    each["logprobs"] = is_chat_ ? chat_scores(event.scores)
                                : completion_scores(extra, event.of_prompt, event.scores,
                                                    echo_ && is_first, index);
  }
  each["finish_reason"] =
      event.finish == Finish::kNone ? Json() : Json(finish_reason(choices_[index]));
  json["choices"] = Json::array({std::move(each)});
  if (include_usage_) json["usage"] = nullptr;
  send_event(json);
}

void OpenAiAnswer::finish_stream() {
  if (include_usage_) {
    Json json = head(is_chat_ ? "chat.completion.chunk" : "text_completion");
    json["choices"] = Json::array();
    json["usage"] = usage();
    send_event(json);
  }
  exchange().write("data: [DONE]\n\n");
  exchange().end();
}

}  // namespace moracle::serve
