// Finds a checkpoint's chat templates in its files.
#pragma once

#include <map>
#include <string>

#include "moracle/base.h"

namespace moracle {

struct ChatFiles {
  std::string text, origin;  ///< the template, and the file it comes from
  std::string tools_text;  ///< the template for conversations with tools; empty: `text` serves both
  std::string tools_origin;
  std::map<std::string, std::string> special_tokens;
};

/// Reads `folder`/chat_template.jinja, or "chat_template" of tokenizer_config.json if that file is
/// missing; of a model in GGUF its metadata. As in transformers, the template named "tool_use"
/// renders conversations with tools. Errors: no template.
Result<ChatFiles> read_chat_files(const std::string& folder);

/// The texts of special tokens that transformers passes to templates, by name: "bos_token", and the
/// model's own names. Empty without a tokenizer_config.json. Errors: no JSON object.
Result<std::map<std::string, std::string>> read_special_tokens(const std::string& folder);

}  // namespace moracle
