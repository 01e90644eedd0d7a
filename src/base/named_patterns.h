// What users type to choose by name: "name", or "pattern=name,pattern=name".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// One entry; without a pattern where the text between two commas holds no '='.
struct NamedPattern {
  std::string pattern;
  std::string name;
};

/// The entries in order; a text without '=' is one entry, whatever commas it holds. Errors
/// (kInvalidArgument, about `option`): an entry "=name".
Result<std::vector<NamedPattern>> parse_named_patterns(std::string_view text, const char* option);

/// True if `pattern` is all of `text`: `*` stands for any text, everything else for itself.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace moracle
