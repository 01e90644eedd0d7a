#include <utility>

#include "base/text.h"
#include "base/try.h"
#include "text/gguf/gguf_text.h"
#include "text/gguf/gguf_tokens.h"

namespace moracle {

Result<ChatFiles> read_gguf_chat(const nlohmann::json& metadata, const std::string& file) {
  const JsonField root(metadata, file);
  const JsonField always = root["tokenizer.chat_template"];
  const JsonField tools = root["tokenizer.chat_template.tool_use"];
  if (always.is_null()) return always.bad("a chat template");
  ChatFiles files;
  files.origin = str(file, ", ", always.place());
  files.tools_origin = str(file, ", ", tools.place());
  MORACLE_TRY(files.text, always.text());
  if (!tools.is_null()) {
    MORACLE_TRY(files.tools_text, tools.text());
  }
  MORACLE_TRY(const GgufTokens tokens, GgufTokens::read(root));
  for (const auto& [name, role] : kGgufRoles) {
    if (auto text = tokens.text_of(role)) files.special_tokens.emplace(name, std::move(*text));
  }
  return files;
}

}  // namespace moracle
