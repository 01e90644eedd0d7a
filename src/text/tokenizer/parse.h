// Parses a tokenizer from the text of a tokenizer.json, for tests and for callers that already hold
// the text.
#pragma once

#include <string>
#include <string_view>

#include "moracle/text.h"
#include "text/tokenizer/tokenizer_config.h"

namespace moracle {

/// Like Tokenizer::open; `file` only names the text in errors.
Result<Tokenizer> parse_tokenizer(std::string_view json, const std::string& file,
                                  const TokenizerConfig& config = {});

}  // namespace moracle
