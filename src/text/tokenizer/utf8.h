// UTF-8 helpers of the tokenizer, beside base/utf8.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace moracle {

/// Shortens a long text for an error message.
std::string shortened(std::string_view text);

/// Unicode's White_Space: `\s` in Hugging Face tokenizers.
bool is_white_space(uint32_t code);

/// Returns the start of the last character of `text`, which must not be empty.
size_t last_char(std::string_view text);
/// Returns `end` moved back over white space.
size_t without_space_at_end(std::string_view text, size_t end);
/// Returns `begin` moved forward over white space.
size_t behind_space_at_start(std::string_view text, size_t begin);

}  // namespace moracle
