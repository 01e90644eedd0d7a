// Sets of characters as ranges of code points.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moracle::serve {

/// Ranges of code points, both ends included. Most functions sort and join them.
using CharRanges = std::vector<std::pair<uint32_t, uint32_t>>;

CharRanges complement(CharRanges ranges);
/// Only characters that a string of JSON may hold without an escape.
CharRanges in_json_string(CharRanges ranges);
/// A class of the engine's regular expressions, in ASCII. The ranges must not be empty.
std::string class_text(const CharRanges& ranges);

}  // namespace moracle::serve
