// What tokenizers need of characters beside base/utf8.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace moracle {

/// The first characters of a text that may be long, for an error.
std::string shortened(std::string_view text);

/// Unicode's White_Space: the meaning of `\s` in the tokenizers that wrote the files.
bool is_white_space(uint32_t code);

}  // namespace moracle
