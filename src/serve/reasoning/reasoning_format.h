// How a model marks its reasoning in the text of an answer.
#pragma once

#include <span>
#include <string_view>

#include "moracle/text.h"

namespace moracle::serve {

struct ReasoningFormat {
  std::string_view name;
  std::string_view open, close;  ///< around the reasoning, at the start of an answer
  std::string_view forced;       ///< what closes the reasoning at its budget, and begins the answer
  bool has_channels = false;     ///< GPT-OSS: every part of an answer is a message in a channel
  /// Tags that the tokenizer may have as special tokens, which decoding skips.
  std::span<const std::string_view> tags;
};

std::span<const ReasoningFormat> reasoning_formats();

/// Detects the format by rendering probes: a message with reasoning, then prompts with reasoning on
/// and off. Null: none.
const ReasoningFormat* find_reasoning(const ChatTemplate& chat);

/// True if the prompt ends inside the reasoning of the answer.
bool opens_reasoning(const ReasoningFormat& format, std::string_view prompt);

}  // namespace moracle::serve
