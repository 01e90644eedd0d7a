// Renders messages and tools into a prompt with the model's chat template.
#pragma once

#include <memory>

#include "base/json/json_field.h"
#include "serve/api/served_model.h"

namespace moracle::serve {

/// Format and tools for parsing the tool calls of an answer.
struct ToolUse {
  const ToolFormat& format;
  OfferedTools tools;
};

struct ChatPrompt {
  std::string text;
  std::shared_ptr<const ToolUse> tools;  ///< null: tool calls are not parsed
};

/// Reads messages, tools, tool_choice, reasoning_effort and chat_template_kwargs. `text` is the
/// unparsed body: parsed objects lose their member order, which templates print. Errors: template
/// errors; a tool_choice that needs constrained decoding.
Result<ChatPrompt> read_chat_prompt(const JsonField& body, const std::string& text,
                                    const ServedModel& model);

}  // namespace moracle::serve
