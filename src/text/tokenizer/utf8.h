// What tokenizers need of characters beside base/utf8.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace moracle {

/// The first characters of a text that may be long, for an error.
std::string shortened(std::string_view text);

/// Unicode's White_Space: the meaning of `\s` in the tokenizers that wrote the files.
bool is_white_space(uint32_t code);

/// Returns the start of the last character of `text`, which must not be empty.
size_t last_char(std::string_view text);
/// Returns the end of `text` up to `end` without the white space before `end`.
size_t without_space_at_end(std::string_view text, size_t end);
/// Returns the start of the text behind the white space that begins at `begin`.
size_t behind_space_at_start(std::string_view text, size_t begin);

}  // namespace moracle
