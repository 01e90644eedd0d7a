// The prompt of a chat: messages and tools through the model's chat template.
#pragma once

#include <memory>

#include "base/json/json_field.h"
#include "serve/api/served_model.h"

namespace moracle::serve {

/// How to find the tool calls of an answer.
struct ToolUse {
  const ToolFormat& format;
  OfferedTools tools;
};

struct ChatPrompt {
  std::string text;
  std::shared_ptr<const ToolUse> tools;  ///< null: the whole answer is text
};

/// Reads messages, tools, tool_choice, reasoning_effort and chat_template_kwargs. `text` is the
/// whole body: objects of `body` have lost the order of their members, which templates show.
/// Errors: those of the template; a choice of tools that needs a grammar.
Result<ChatPrompt> read_chat_prompt(const JsonField& body, const std::string& text,
                                    const ServedModel& model);

}  // namespace moracle::serve
