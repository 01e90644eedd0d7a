#include "text/gguf/gguf_tokens.h"

#include <unordered_set>

#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "text/gguf/end_tokens.h"
#include "text/tokenizer/added_tokens.h"

namespace moracle {
namespace gguf_tokens {
namespace {

using Json = nlohmann::json;

// "seperator" is the format's spelling.
constexpr const char* kRoles[] = {"bos_token_id",       "unknown_token_id", "cls_token_id",
                                  "seperator_token_id", "padding_token_id", "mask_token_id"};
constexpr const char* kEndRoles[] = {"eos_token_id",     "eot_token_id",     "eom_token_id",
                                     "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"};

JsonField member(const JsonField& metadata, std::string_view name) {
  return metadata[gguf_tokenizer_key(name)];
}

JsonField element(const JsonField& array, size_t i) {
  return {array.value()[i], array.file(), str(array.place(), '[', i, ']')};
}

Error wrong_length(const JsonField& array, size_t need) {
  return {ErrorKind::kBadFile, array.file(), array.place(),
          str("an array of ", need, " values, one per token"),
          str("it has ", array.value().size())};
}

Result<std::vector<std::string>> read_texts(const JsonField& field) {
  if (!field.value().is_array() || field.value().empty())
    return field.bad("an array of texts of tokens");
  if (field.value().size() > static_cast<size_t>(kLargestTokenId)) {
    return Error{ErrorKind::kUnsupported, field.file(), field.place(),
                 str("at most ", kLargestTokenId, " tokens"), str("it has ", field.value().size())};
  }
  std::vector<std::string> texts;
  std::unordered_set<std::string_view> known;
  texts.reserve(field.value().size());  // `known` refers to the texts
  for (size_t id = 0; id < field.value().size(); ++id) {
    const Json& value = field.value()[id];
    if (!value.is_string()) return element(field, id).bad("the text of a token");
    std::string text = value.get<std::string>();
    if (text.empty()) text = str("[EMPTY_", id, ']');
    if (first_invalid_utf8(text)) return element(field, id).bad("UTF-8");
    texts.push_back(std::move(text));
    if (!known.insert(texts.back()).second)
      return element(field, id).bad("a text that no other token has");
  }
  return texts;
}

Result<std::vector<GgufTokenType>> read_types(const JsonField& field, size_t num_tokens) {
  constexpr auto kLast = static_cast<int64_t>(GgufTokenType::kByte);
  if (!field.value().is_array()) return field.bad("an array of types of tokens");
  if (field.value().size() != num_tokens) return wrong_length(field, num_tokens);
  std::vector<GgufTokenType> types;
  types.reserve(num_tokens);
  for (size_t id = 0; id < num_tokens; ++id) {
    const auto type = JsonField(field.value()[id], field.file()).integer(0, kLast);
    if (!type) return element(field, id).bad(type.error().need);
    types.push_back(static_cast<GgufTokenType>(*type));
  }
  return types;
}

Result<Json> read_roles(const JsonField& metadata, size_t num_tokens) {
  Json roles = Json::object();
  const auto read = [&](const char* role) -> Status {
    const JsonField field = member(metadata, role);
    if (field.is_null()) return {};
    MORACLE_TRY(roles[role], field.integer(0, static_cast<int64_t>(num_tokens) - 1));
    return {};
  };
  for (const char* role : kRoles) MORACLE_CHECK(read(role));
  for (const char* role : kEndRoles) MORACLE_CHECK(read(role));
  return roles;
}

}  // namespace
}  // namespace gguf_tokens

std::string gguf_tokenizer_key(std::string_view name) {
  return str("tokenizer.ggml.", name);
}

Result<GgufTokens> GgufTokens::read(const JsonField& metadata) {
  using namespace gguf_tokens;
  GgufTokens tokens;
  const JsonField texts = member(metadata, "tokens");
  MORACLE_TRY(tokens.texts, read_texts(texts));
  MORACLE_TRY(tokens.types, read_types(member(metadata, "token_type"), tokens.texts.size()));
  MORACLE_TRY(tokens.roles, read_roles(metadata, tokens.texts.size()));
  for (const int32_t id : end_tokens(tokens.texts, {})) {
    // Some files give these tokens another type. Encoding finds them in prompts all the same.
    tokens.types[static_cast<size_t>(id)] = GgufTokenType::kControl;
  }
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (!tokens.is_added(id) || tokens.texts[id].size() <= AddedTokens::kLongestContent) continue;
    return element(texts, id).unsupported(str("at most ", AddedTokens::kLongestContent,
                                              " bytes in a token of type ",
                                              int{static_cast<uint8_t>(tokens.types[id])}));
  }
  return tokens;
}

bool GgufTokens::is_added(size_t id) const {
  return types[id] == GgufTokenType::kUserDefined || is_special(id);
}

bool GgufTokens::is_special(size_t id) const {
  return types[id] == GgufTokenType::kControl || types[id] == GgufTokenType::kUnknown;
}

Result<int32_t> GgufTokens::required(const JsonField& metadata, const char* role,
                                     const char* use) const {
  const auto found = roles.find(role);
  if (found != roles.end()) return found->get<int32_t>();
  return metadata[gguf_tokenizer_key(role)].bad(use);
}

std::optional<std::string> GgufTokens::text_of(const char* role) const {
  const auto found = roles.find(role);
  if (found == roles.end()) return std::nullopt;
  return texts[found->get<size_t>()];
}

std::vector<int32_t> GgufTokens::ends() const {
  std::vector<int32_t> named;
  for (const char* role : gguf_tokens::kEndRoles) {
    if (const auto found = roles.find(role); found != roles.end())
      named.push_back(found->get<int32_t>());
  }
  return end_tokens(texts, std::move(named));
}

}  // namespace moracle
