// Parses string and number literals of a template.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/syntax/lexer.h"

namespace moracle::jinja {

/// Decodes the text between a string literal's quotes. Errors: escapes that Python rejects, and
/// \N{...}.
Result<std::string> unescape(std::string_view body, int line);

/// Reads the number at the start of `text`, which takes *length bytes: 10, 1_000, 0x1f, 0b1, 1.5,
/// 2e3. After a dot (x.0.1), reads integers only.
Result<Token> read_number(std::string_view text, bool after_dot, int line, size_t* length);

}  // namespace moracle::jinja
