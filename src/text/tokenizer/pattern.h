// A pattern in tokenizer.json: a regular expression or a fixed string.
#pragma once

#include "base/json/json_field.h"
#include "base/regex/regex.h"

namespace moracle {

/// Compiles {"Regex": ...} or {"String": ...}. Errors: kBadFile; kUnsupported for expressions that
/// Oniguruma rejects.
Result<Regex> compile_pattern(const JsonField& field);

/// Returns the Regex, or its error with file and field.
Result<Regex> placed(Result<Regex> regex, const JsonField& field);

}  // namespace moracle
