// Strings and numbers as they are written in a template.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/lexer.h"

namespace moracle::jinja {

/// The text of a string literal, given what stands between its quotes.
/// Errors: escapes that Python refuses, and \N{...}.
Result<std::string> unescape(std::string_view body, int line);

/// The number at the start of `text`, in *length bytes of it: 10, 1_000, 0x1f, 0b1, 1.5, 2e3.
/// After a dot (x.0.1) there are only integers.
Result<Token> read_number(std::string_view text, bool after_dot, int line, size_t* length);

}  // namespace moracle::jinja
