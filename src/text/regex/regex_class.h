// Bracketed classes of Oniguruma, with its nested classes and intersections.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Reads the class whose `[` stands at `at`, moves `at` behind its `]`, and returns what matches
/// the same single characters in PCRE2: a class, or a group where classes are nested or
/// intersected. Errors: kUnsupported with `need` and `fact`.
Result<std::string> read_regex_class(std::string_view pattern, size_t& at);

}  // namespace moracle
