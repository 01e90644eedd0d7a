// Gemma 4's format of tool calls.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// call:NAME{KEY:VALUE,…}, where a string is <|"|>TEXT<|"|>.
std::optional<std::vector<ToolCall>> parse_gemma(std::string_view block, const OfferedTools& tools);

}  // namespace moracle::serve
