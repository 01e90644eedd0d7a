#include "text/tokenizer/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json/json_file.h"
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/config.h"

namespace moracle {
namespace tokenizer_config {
namespace {

using Json = nlohmann::json;

// In transformers' order.
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

bool is_token(const Json& value) {
  return value.is_string() || (value.is_object() && value.contains("content"));
}

// A special token: a JSON object with optional flags, or its content as a string.
Result<AddedToken> read_token(const JsonField& field) {
  AddedToken token;
  if (field.value().is_string()) {
    token.special = true;
    token.content = *field.text();
    return token;
  }
  MORACLE_TRY(token.content, field["content"].text());
  MORACLE_TRY(token.single_word, field["single_word"].flag_or(false));
  MORACLE_TRY(token.lstrip, field["lstrip"].flag_or(false));
  MORACLE_TRY(token.rstrip, field["rstrip"].flag_or(false));
  MORACLE_TRY(token.special, field["special"].flag_or(false));
  MORACLE_TRY(token.normalized, field["normalized"].flag_or(!token.special));
  return token;
}

Status add(const JsonField& field, ConfigToken::Kind kind, TokenizerConfig& config) {
  if (kind == ConfigToken::kNamed && !is_token(field.value())) return {};
  MORACLE_TRY(AddedToken token, read_token(field));
  if (token.content.size() > AddedTokens::kLongestContent)
    return field.unsupported(str("at most ", AddedTokens::kLongestContent, " bytes"));
  token.special = token.special || kind == ConfigToken::kNamed;
  if (!token.content.empty()) config.tokens.push_back({std::move(token), kind});
  return {};
}

Status add_listed(const JsonField& listed, TokenizerConfig& config) {
  if (listed.is_null()) return {};
  if (!listed.is_object()) return listed.bad("an object");
  std::map<int64_t, JsonField> by_id;
  for (const auto& [key, value] : listed.value().items()) {
    int64_t id = -1;
    const char* const end = key.data() + key.size();
    const auto [at, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || at != end || id < 0) return listed.bad("token ids as keys");
    by_id.emplace(id, listed[key]);
  }
  for (const auto& [id, token] : by_id) {
    if (!token.is_object()) return token.bad("an object");
    MORACLE_CHECK(add(token, ConfigToken::kListed, config));
  }
  return {};
}

// Add model-specific tokens such as "image_token" after the standard ones.
Status add_named(const JsonField& root, TokenizerConfig& config) {
  for (const char* name : kNames) MORACLE_CHECK(add(root[name], ConfigToken::kNamed, config));
  for (const auto& [key, value] : root.value().items()) {
    const bool is_usual = std::find(std::begin(kNames), std::end(kNames), key) != std::end(kNames);
    if (is_usual || !key.ends_with("_token")) continue;
    MORACLE_CHECK(add(root[key], ConfigToken::kNamed, config));
  }
  return {};
}

Status add_more(const JsonField& root, TokenizerConfig& config) {
  const bool is_new = !root["extra_special_tokens"].value().empty();
  const JsonField more = root[is_new ? "extra_special_tokens" : "additional_special_tokens"];
  if (more.is_object()) {
    for (const auto& [key, value] : more.value().items())
      MORACLE_CHECK(add(more[key], ConfigToken::kNamed, config));
    return {};
  }
  if (more.is_null()) return {};
  MORACLE_TRY(const std::vector<JsonField> items, more.items());
  for (const JsonField& item : items) MORACLE_CHECK(add(item, ConfigToken::kMore, config));
  return {};
}

}  // namespace
}  // namespace tokenizer_config

Result<TokenizerConfig> TokenizerConfig::read(const std::string& folder) {
  using namespace tokenizer_config;
  const std::string path = folder + "/tokenizer_config.json";
  const std::string map = folder + "/special_tokens_map.json";
  Json json = Json::object();
  if (!is_absent(path)) {
    MORACLE_TRY(json, read_json_file(path));
  }
  if (!json.contains("added_tokens_decoder") && !is_absent(map)) {
    MORACLE_TRY(const Json named, read_json_file(map));
    json.update(named);
  }
  const JsonField root(json, path);
  TokenizerConfig config;
  if (is_token(root["eos_token"].value())) {
    MORACLE_TRY(const AddedToken eos, read_token(root["eos_token"]));
    config.eos = eos.content;
  }
  MORACLE_CHECK(add_listed(root["added_tokens_decoder"], config));
  MORACLE_CHECK(add_named(root, config));
  MORACLE_CHECK(add_more(root, config));
  return config;
}

}  // namespace moracle
