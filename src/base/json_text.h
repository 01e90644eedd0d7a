// Checks on JSON text before parsing.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Checks the nesting depth: copying, comparing and printing a parsed value recurse, and unlimited
/// nesting would overflow the stack. Errors: kBadFile for more than 64 levels, for more than
/// kMaxConfigBytes, and for a NUL, which the parser treats as the end of the text.
Status check_json_text(std::string_view text, const std::string& file);

}  // namespace moracle
