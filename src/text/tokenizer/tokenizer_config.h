// Tokens of tokenizer_config.json, read as transformers 5.24 does beside a tokenizer.json.
#pragma once

#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.h"

namespace moracle {

struct TokenizerConfig {
  std::vector<ConfigToken> tokens;  ///< in id order
  std::string eos;                  ///< the content of "eos_token"; empty: none

  /// Reads `folder`/tokenizer_config.json, and special_tokens_map.json if the former has no
  /// "added_tokens_decoder". Both may be missing. Errors: no JSON object; a wrong type.
  static Result<TokenizerConfig> read(const std::string& folder);
};

}  // namespace moracle
