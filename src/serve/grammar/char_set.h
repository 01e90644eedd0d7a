// Character sets as ranges of code points.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moracle::serve {

/// Inclusive code point ranges. Most functions sort and merge them.
using CharRanges = std::vector<std::pair<uint32_t, uint32_t>>;

CharRanges complement(CharRanges ranges);
/// Removes characters that a JSON string must escape.
CharRanges in_json_string(CharRanges ranges);
/// Removes surrogates, which UTF-8 cannot encode.
CharRanges in_text(CharRanges ranges);
/// Writes a character class for the grammar engine, in ASCII. The set must not be empty.
std::string class_text(const CharRanges& ranges);

}  // namespace moracle::serve
