// Tokenizer files with byte tokens and ranks instead of merges: tekken.json, tiktoken.model.
#pragma once

#include <string>

#include "text/tokenizer/parts.h"

namespace moracle {

/// Reads Mistral's tekken.json. Matches special tokens in the text, as for tokenizer.json. Prompts
/// start with `<s>`. Errors: kBadFile; kIo.
Result<TokenizerParts> read_tekken(const std::string& path);

/// Kimi's pre-tokenizer: it splits Chinese characters from other letters, and numbers into at most
/// three digits.
inline constexpr const char* kKimiWords =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Reads tiktoken.model: each line holds a token in base 64 and its rank. The file has neither the
/// pre-tokenizer's expression nor special tokens: "tokenizer_class" of `config`
/// (tokenizer_config.json) determines the former, its "added_tokens_decoder" the latter. Errors:
/// kUnsupported for classes other than Kimi's TikTokenTokenizer; kBadFile; kIo.
Result<TokenizerParts> read_tiktoken(const std::string& path, const std::string& config);

}  // namespace moracle
