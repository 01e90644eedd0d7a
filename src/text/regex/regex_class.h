// Bracketed classes of Oniguruma, including nested classes and intersections.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Reads the class whose `[` is at `at`, and moves `at` behind its `]`. Returns a PCRE2 pattern
/// that matches the same single characters: a class, or a group if classes are nested or
/// intersected. Errors: kUnsupported with `need` and `fact`.
Result<std::string> read_regex_class(std::string_view pattern, size_t& at);

}  // namespace moracle
