// Writes "logprobs" in the two formats of OpenAI's API: completions and chat.
#include <algorithm>
#include <iomanip>
#include <sstream>

#include "base/text.h"
#include "base/utf8.h"
#include "serve/answers/openai_answer.h"

namespace moracle::serve {
namespace {

// Number of code points, as Python's len().
int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

std::string OpenAiAnswer::token_key(int32_t id) const {
  std::string text = token_text(id);
  if (!first_invalid_utf8(text)) return text;
  std::ostringstream bytes;
  bytes << "bytes:" << std::hex;
  for (const char byte : text) bytes << "\\x" << std::setw(2) << std::setfill('0') << (byte & 0xFF);
  return std::move(bytes).str();
}

Json OpenAiAnswer::completion_scores(Extra& extra, std::span<const TokenScore> of_prompt,
                                     std::span<const TokenScore> scores, bool shows_prompt,
                                     size_t index) const {
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  const auto add_token = [&](int32_t id) {
    tokens.push_back(token_key(id));
    offsets.push_back(extra.text_offset);
    // The text leaves special tokens out.
    if (!tokenizer_.is_special(id)) extra.text_offset += num_characters(token_text(id));
  };
  const auto add = [&](const TokenScore& score) {
    add_token(score.id);
    values.push_back(score.log_probability);
    // Keys collide if two tokens have the same text. Keep it for the sampled token: clients look it
    // up here.
    const std::string own = tokens.back();
    Json top = Json::object();
    for (const auto& [id, value] : score.top) {
      const std::string key = token_key(id);
      const bool taken = id != score.id && (key == own || top.contains(key));
      top[taken ? str("token_id:", id) : key] = value;
    }
    top[own] = score.log_probability;
    tops.push_back(std::move(top));
  };
  if (shows_prompt) {
    add_token(first_ids_[index]);
    values.push_back(nullptr);
    tops.push_back(nullptr);
  }
  for (const TokenScore& score : of_prompt) add(score);
  for (const TokenScore& score : scores) add(score);
  return {{"text_offset", std::move(offsets)},
          {"token_logprobs", std::move(values)},
          {"tokens", std::move(tokens)},
          {"top_logprobs", std::move(tops)}};
}

Json OpenAiAnswer::chat_scores(std::span<const TokenScore> scores) const {
  const auto entry = [&](int32_t id, float value) -> Json {
    const std::string text = token_text(id);
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<uint8_t>(byte));
    return {{"token", text}, {"logprob", value}, {"bytes", std::move(bytes)}};
  };
  Json content = Json::array();
  for (const TokenScore& score : scores) {
    Json token = entry(score.id, score.log_probability);
    token["top_logprobs"] = Json::array();
    for (const auto& [id, value] : score.top) token["top_logprobs"].push_back(entry(id, value));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}};
}

}  // namespace moracle::serve
