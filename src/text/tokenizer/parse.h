// Parses a tokenizer.json that is already in memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "moracle/text.h"
#include "text/tokenizer/parts.h"
#include "text/tokenizer/tokenizer_config.h"

namespace moracle {

/// The pipeline of a tokenizer.json. Errors: those of Tokenizer::open.
Result<TokenizerParts> parse_tokenizer_parts(const nlohmann::json& document,
                                             const std::string& file,
                                             const TokenizerConfig& config = {});

/// As Tokenizer::open. `file` names the text in errors.
Result<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file,
                                  const TokenizerConfig& config = {});

}  // namespace moracle
