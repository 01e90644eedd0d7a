// The tokens of a GGUF file and their roles. Keys: "tokenizer.ggml.".
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json/json_field.h"

namespace moracle {

/// Numbers of "token_type".
enum class GgufTokenType : uint8_t {
  kUndefined,
  kNormal,
  kUnknown,
  kControl,
  kUserDefined,
  kUnused,
  kByte,
};

struct GgufTokens {
  /// Reads "tokens", "token_type" and the ids of tokens with a role from the file's metadata.
  /// Errors (kBadFile): wrong types; arrays of different lengths; a text that is not UTF-8, occurs
  /// twice, or is too long for an added token; an id without a token.
  static Result<GgufTokens> read(const JsonField& metadata);

  /// Whether encoding finds the token in the text before it splits words.
  bool is_added(size_t id) const;
  /// Whether decoding may leave the token out.
  bool is_special(size_t id) const;
  /// The id of a role, such as "bos_token_id". Errors: the file has none.
  Result<int32_t> required(const JsonField& metadata, const char* role, const char* use) const;
  /// Text of a role's token.
  std::optional<std::string> text_of(const char* role) const;

  /// Ids that end an answer: those of roles such as eos and eot, and the tokens that llama.cpp
  /// finds by their texts, because many files name only one.
  std::vector<int32_t> ends() const;

  std::vector<std::string> texts;  ///< by id; "[EMPTY_7]" for an empty text, as in llama.cpp
  std::vector<GgufTokenType> types;
  nlohmann::json roles;  ///< ids by key: {"bos_token_id": 1}
};

/// transformers' names of special tokens, as templates use them, and the roles of the format.
struct GgufRole {
  const char *token, *role;
};
inline constexpr GgufRole kGgufRoles[] = {
    {"bos_token", "bos_token_id"},     {"eos_token", "eos_token_id"},
    {"unk_token", "unknown_token_id"}, {"sep_token", "seperator_token_id"},
    {"pad_token", "padding_token_id"}, {"cls_token", "cls_token_id"},
    {"mask_token", "mask_token_id"}};

/// The key of a member of "tokenizer.ggml".
std::string gguf_tokenizer_key(std::string_view name);

}  // namespace moracle
