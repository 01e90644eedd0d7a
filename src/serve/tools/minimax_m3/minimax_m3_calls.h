// MiniMax-M3's format of tool calls.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// Before each tag of the format, so that text may contain others.
inline constexpr std::string_view kMiniMaxM3Tag = "]<]minimax[>[<";

/// NS<invoke name="NAME">NS<KEY>VALUE NS</KEY>NS</invoke>, or several, where NS is the text before
/// each tag. A value is text, members between tags of their names, or items between <item> tags.
std::optional<std::vector<ToolCall>> parse_minimax_m3(std::string_view block,
                                                      const OfferedTools& tools);

}  // namespace moracle::serve
