// The grammar of Gemma 4's arguments, which the grammar engine has no style for.
#pragma once

#include <string>

#include "moracle/base.h"

namespace moracle::serve {

/// EBNF of arguments that hold to a schema of lower_schema(). Members come in the order of their
/// names, as Gemma's template prints them. `place` names the schema in errors. Errors: a keyword
/// that EBNF does not express, such as minimum; a name that the syntax cannot hold.
Result<std::string> gemma_grammar(const std::string& lowered, const std::string& place);

}  // namespace moracle::serve
