// Checks and parses JSON text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Checks the nesting depth: copying, comparing and printing a parsed value recurse, and unlimited
/// nesting would overflow the stack. Errors: kBadFile for more than 64 levels, for more than
/// kMaxConfigBytes, and for a NUL, which the parser treats as the end of the text.
Status check_json_text(std::string_view text, const std::string& file);

/// The value of the text. Errors: those of check_json_text; a syntax error, with line and column.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& file);

/// Length in bytes of the array or object at the start of the text, found by its brackets. 0 if
/// there is none, or if it does not end.
size_t json_length(std::string_view text);

}  // namespace moracle
