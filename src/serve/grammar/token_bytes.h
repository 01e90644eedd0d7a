#pragma once

#include <string>
#include <vector>

#include "moracle/text.h"

namespace moracle::serve {

/// Bytes that each token adds in the middle of a text. Empty for special tokens and unused ids.
Result<std::vector<std::string>> token_bytes(const Tokenizer& tokenizer, int64_t vocab_size,
                                             std::span<const int32_t> tag_ids = {});

}  // namespace moracle::serve
