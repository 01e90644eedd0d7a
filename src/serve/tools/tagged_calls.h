// Tool call formats with arguments between XML-like tags. The tool's schema tells strings from
// other types.
#pragma once

#include "serve/tools/call_cursor.h"
#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// The value between two tags. Strings are unquoted; all other values are JSON. `has_lines`: one
/// line break on each side belongs to the tags.
CallJson tagged_value(std::string_view text, bool is_text, bool has_lines);

/// <function=NAME><parameter=KEY>VALUE</parameter></function>
std::optional<std::vector<ToolCall>> parse_qwen_coder(std::string_view block,
                                                      const OfferedTools& tools);
/// NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>
std::optional<std::vector<ToolCall>> parse_glm(std::string_view block, const OfferedTools& tools);
/// <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, or several
std::optional<std::vector<ToolCall>> parse_minimax(std::string_view block,
                                                   const OfferedTools& tools);

/// <｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY"
/// string="true">VALUE</｜DSML｜parameter>
/// </｜DSML｜invoke>, or several: DeepSeek V3.2
std::optional<std::vector<ToolCall>> parse_dsml(std::string_view block, const OfferedTools& tools);

}  // namespace moracle::serve
