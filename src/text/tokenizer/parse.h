// Parses a tokenizer.json that is already in memory.
#pragma once

#include <string>
#include <string_view>

#include "moracle/text.h"
#include "text/tokenizer/tokenizer_config.h"

namespace moracle {

/// As Tokenizer::open. `file` names the text in errors.
Result<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file,
                                  const TokenizerConfig& config = {});

}  // namespace moracle
