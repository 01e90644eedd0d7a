// Files that hold tokens as bytes with ranks, and no merges.
#pragma once

#include <string>

#include "text/tokenizer/parts.h"

namespace moracle {

/// A tekken.json, as Mistral ships it. Its special tokens are cut out of texts, as those of a
/// tokenizer.json; `<s>` comes before prompts. Errors: kBadFile; kIo.
Result<TokenizerParts> read_tekken(const std::string& path);

/// A tiktoken.model with lines of a token in base 64 and its rank. The file holds neither the
/// expression for words nor the special tokens: the first comes from the "tokenizer_class" of
/// `config`, a tokenizer_config.json, the second from its "added_tokens_decoder". Errors:
/// kUnsupported for classes other than Kimi's TikTokenTokenizer; kBadFile; kIo.
Result<TokenizerParts> read_tiktoken(const std::string& path, const std::string& config);

}  // namespace moracle
