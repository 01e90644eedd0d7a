// The files of a checkpoint that hold chat templates.
#pragma once

#include <map>
#include <string>

#include "moracle/base.h"

namespace moracle {

struct ChatFiles {
  std::string text, origin;  ///< the template, and the file that holds it
  std::string tools_text;    ///< another template for conversations with tools; empty: none
  std::string tools_origin;
  std::map<std::string, std::string> special_tokens;
};

/// Reads `folder`/chat_template.jinja, else "chat_template" of tokenizer_config.json. The template
/// named "tool_use" is the one for tools, as in transformers. Errors: no template.
Result<ChatFiles> read_chat_files(const std::string& folder);

}  // namespace moracle
