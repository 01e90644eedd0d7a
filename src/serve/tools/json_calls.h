// Tool call formats with JSON arguments.
#pragma once

#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// {"name": …, "arguments": {…}}
std::optional<std::vector<ToolCall>> parse_named_object(std::string_view block,
                                                        const OfferedTools& tools);
/// {"name": …, "parameters": {…}}, several separated by ';' or nothing.
std::optional<std::vector<ToolCall>> parse_parameters(std::string_view block,
                                                      const OfferedTools& tools);
/// [{"name": …, "arguments": {…}}, …], or name[ARGS]{…}[TOOL_CALLS]name[ARGS]{…}
std::optional<std::vector<ToolCall>> parse_mistral(std::string_view block,
                                                   const OfferedTools& tools);
std::optional<std::vector<ToolCall>> parse_deepseek(std::string_view block,
                                                    const OfferedTools& tools);
/// NAME<|channel|>commentary json<|message|>{…}, GPT-OSS
std::optional<std::vector<ToolCall>> parse_channel_call(std::string_view block,
                                                        const OfferedTools& tools);
std::optional<std::vector<ToolCall>> parse_kimi(std::string_view block, const OfferedTools& tools);

}  // namespace moracle::serve
