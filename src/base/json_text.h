// What is checked of JSON before a parser sees it.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Copying, comparing and printing a parsed value recurse: nesting without end would use up the
/// stack. Errors: kBadFile for more than 64 levels, for more than kMaxConfigBytes, and for a NUL,
/// which the parser takes for the end of the text.
Status check_json_text(std::string_view text, const std::string& file);

}  // namespace moracle
