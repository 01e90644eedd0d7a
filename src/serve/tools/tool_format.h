// Text formats of tool calls.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "moracle/text.h"
#include "serve/tools/tool_call.h"

namespace moracle::serve {

/// Parses a block. Empty: it holds no call of an offered tool.
using ParseCalls = std::optional<std::vector<ToolCall>> (*)(std::string_view block,
                                                            const OfferedTools& tools);

/// Style of arguments whose grammar is gemma_grammar().
inline constexpr std::string_view kGemmaStyle = "gemma";

struct ToolFormat {
  std::string_view name;
  /// Tags around a block of calls. No `open`: the whole text is a call if it begins with '{'. No
  /// `close`: the calls end with the text.
  std::string_view open, close;
  ParseCalls parse;  ///< parses the text between both tags
  /// Other tags of the format. The tokenizer may have them as special tokens, which decoding skips.
  std::span<const std::string_view> tags;
  /// The grammar engine's style of arguments, or kGemmaStyle, and what they begin and end with.
  /// Empty: none, so calls cannot be constrained.
  std::string_view style{}, arguments_open{}, arguments_close{};
  /// Tags before the name and before JSON arguments. No `arguments_tag`: a member "arguments" or
  /// "parameters" has them.
  std::string_view name_tag{}, arguments_tag{};
  bool close_ends_answer = false;  ///< `close` is a stop token
  bool is_sent_whole = false;      ///< arguments are sent at the end of a call
};

/// The tags that are special tokens of the tokenizer.
std::vector<int32_t> special_ids(std::span<const std::string_view> tags,
                                 const Tokenizer& tokenizer);
/// Tags of a format that are special tokens of the tokenizer. An answer with tools must decode
/// them.
std::vector<int32_t> special_tags(const ToolFormat& format, const Tokenizer& tokenizer);

/// All formats, in order of preference: a later one may accept the inner text of an earlier one.
std::span<const ToolFormat> tool_formats();

}  // namespace moracle::serve
