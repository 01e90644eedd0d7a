// Parses user input that selects by name: "name", or "pattern=name,pattern=name".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "moracle/base.h"

namespace moracle {

/// One entry; the pattern is empty if the text between two commas has no '='.
struct NamedPattern {
  std::string pattern;
  std::string name;
};

/// The entries in order. A text without '=' is one entry, even with commas. Errors
/// (kInvalidArgument, about `option`): an entry "=name".
Result<std::vector<NamedPattern>> parse_named_patterns(std::string_view text, const char* option);

/// True if `pattern` matches all of `text`. `*` matches any text; other characters match
/// themselves.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace moracle
