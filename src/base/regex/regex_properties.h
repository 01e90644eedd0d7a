// Properties of characters in regular expressions, by the project's own Unicode tables.
#pragma once

#include <string>
#include <string_view>

namespace moracle {

/// Registers the tables with Oniguruma, under names of this project. Call it once, before
/// with_own_properties().
void define_own_properties();

/// Replaces \d, \w and properties such as \p{L}, \p{Lu} or \p{Han} by those of this project's
/// tables. Other properties keep the meaning of the installed Oniguruma.
std::string with_own_properties(std::string_view pattern);

}  // namespace moracle
