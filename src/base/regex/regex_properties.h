// Properties of characters in regular expressions, by the project's own Unicode tables.
#pragma once

#include <string>
#include <string_view>

namespace moracle {

/// Makes the tables known to Oniguruma, under names of this project. To be called once, before
/// with_own_properties().
void define_own_properties();

/// The pattern with \d, \w and properties such as \p{L}, \p{Lu} or \p{Han} replaced by those of the
/// own tables. Others keep the meaning of the installed Oniguruma.
std::string with_own_properties(std::string_view pattern);

}  // namespace moracle
