#include "text/chat_files.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/json/json_file.h"
#include "base/small_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"
#include "checkpoint/gguf/open_gguf.h"
#include "text/gguf/gguf_text.h"

namespace moracle {
namespace {

using Json = nlohmann::json;

// Returns a special token's text: a JSON string, or the "content" string of a JSON object.
std::optional<std::string> token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (!token.is_object()) return std::nullopt;
  const auto content = token.find("content");
  if (content == token.end() || !content->is_string()) return std::nullopt;
  return content->get<std::string>();
}

// Returns the special tokens that transformers passes to templates: bos_token, eos_token and so on,
// and the model's own names.
std::map<std::string, std::string> special_tokens_of(const Json& config) {
  std::map<std::string, std::string> tokens;
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto found = config.find(name);
    if (found == config.end()) continue;
    if (auto text = token_text(*found)) tokens.emplace(name, std::move(*text));
  }
  const auto extra = config.find("extra_special_tokens");
  if (extra == config.end() || !extra->is_object()) return tokens;
  for (const auto& [name, token] : extra->items()) {
    if (auto text = token_text(token)) tokens.emplace(name, std::move(*text));
  }
  return tokens;
}

// Reads "chat_template": one template, or a list of named templates.
Status read_templates(const Json& config, const std::string& path, ChatFiles& files) {
  files.origin = files.tools_origin = path;
  const auto found = config.find("chat_template");
  if (found != config.end() && found->is_string()) {
    files.text = found->get<std::string>();
    return {};
  }
  Error error{ErrorKind::kBadFile, path, "chat_template", "a chat template", "it is missing"};
  if (found == config.end() || found->is_null()) return error;
  error.need = "a string, or a list of objects with a name and a template";
  error.fact = str("it is of type ", found->type_name());
  if (!found->is_array()) return error;
  bool has_default = false;
  for (const Json& entry : *found) {
    if (!entry.is_object()) return error;
    const auto name = entry.find("name");
    const auto text = entry.find("template");
    if (name == entry.end() || text == entry.end() || !text->is_string()) return error;
    if (*name == "default") files.text = text->get<std::string>();
    if (*name == "tool_use") files.tools_text = text->get<std::string>();
    has_default |= *name == "default";
  }
  if (has_default) return {};
  error.need = "a template named \"default\"";
  error.fact = str("none of the ", found->size(), " templates has that name");
  return error;
}

}  // namespace

Result<ChatFiles> read_chat_files(const std::string& folder) {
  MORACLE_TRY(const std::optional<Config> gguf, gguf_metadata(folder));
  if (gguf) return read_gguf_chat(gguf->value(), gguf->path());
  const std::string file = folder + "/chat_template.jinja";
  const std::string tools_file = folder + "/additional_chat_templates/tool_use.jinja";
  const std::string config_path = folder + "/tokenizer_config.json";
  const bool has_file = !is_absent(file);
  Json config = Json::object();
  if (!has_file || !is_absent(config_path)) {
    MORACLE_TRY(config, read_json_file(config_path));
  }
  ChatFiles files;
  files.special_tokens = special_tokens_of(config);
  if (!has_file) {
    MORACLE_CHECK(read_templates(config, config_path, files));
    return files;
  }
  files.origin = file;
  MORACLE_TRY(files.text, read_small_file(file));
  if (is_absent(tools_file)) return files;
  files.tools_origin = tools_file;
  MORACLE_TRY(files.tools_text, read_small_file(tools_file));
  return files;
}

Result<std::map<std::string, std::string>> read_special_tokens(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  if (is_absent(path)) return std::map<std::string, std::string>();
  MORACLE_TRY(const Json config, read_json_file(path));
  return special_tokens_of(config);
}

}  // namespace moracle
