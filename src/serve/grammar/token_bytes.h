#pragma once

#include <string>
#include <vector>

#include "moracle/text.h"

namespace moracle::serve {

/// The text that each token adds inside a text. Special tokens and ids without token add none.
Result<std::vector<std::string>> token_bytes(const Tokenizer& tokenizer, int64_t vocab_size);

}  // namespace moracle::serve
