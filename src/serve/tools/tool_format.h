// The ways in which models write calls of tools.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "moracle/text.h"
#include "serve/tools/tool_call.h"

namespace moracle::serve {

/// Empty: the block is no call of an offered tool.
using ParseCalls = std::optional<std::vector<ToolCall>> (*)(std::string_view block,
                                                            const OfferedTools& tools);

struct ToolFormat {
  std::string_view name;
  /// Text around calls. No `open`: the whole text is a call if it begins with '{'. No `close`: the
  /// calls end with the text.
  std::string_view open, close;
  ParseCalls parse;  ///< of the text between both
  /// Further tags of the format. Tokenizers may hold them as special tokens, which texts leave
  /// out.
  std::span<const std::string_view> tags;
};

/// The tags of a format that the tokenizer holds as special tokens: an answer with tools shows
/// them.
std::vector<int32_t> special_tags(const ToolFormat& format, const Tokenizer& tokenizer);

/// All formats. A later one may accept what an earlier one encloses.
std::span<const ToolFormat> tool_formats();

}  // namespace moracle::serve
