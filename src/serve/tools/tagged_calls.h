// Tool call formats with arguments between XML-like tags. The tool's schema tells strings from
// other types.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// <function=NAME><parameter=KEY>VALUE</parameter></function>
std::optional<std::vector<ToolCall>> parse_qwen_coder(std::string_view block,
                                                      const OfferedTools& tools);
/// NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>
std::optional<std::vector<ToolCall>> parse_glm(std::string_view block, const OfferedTools& tools);
/// <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, or several
std::optional<std::vector<ToolCall>> parse_minimax(std::string_view block,
                                                   const OfferedTools& tools);

}  // namespace moracle::serve
