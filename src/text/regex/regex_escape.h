// One escape or plain character of an Oniguruma regular expression.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// The meaning of an escape or a plain character, in the syntax of PCRE2.
struct RegexAtom {
  enum class Kind : uint8_t {
    kCode,    ///< the character `code`
    kClass,   ///< `text` goes between the brackets of a class
    kNoneOf,  ///< any character except those of `text` in brackets
    kAnchor,  ///< `text` is an assertion
  };
  Kind kind = Kind::kCode;
  uint32_t code = 0;
  std::string text;
};

/// Reads the escape or character at `at` in `pattern`, which must not be its end, and moves `at`
/// behind it. Errors: kUnsupported with `need` and `fact`.
Result<RegexAtom> read_regex_atom(std::string_view pattern, size_t& at);

/// `code` in a form that PCRE2 reads inside and outside of a class as a character, never as syntax.
std::string regex_literal(uint32_t code);

/// Makes a kUnsupported Error for the construct that `fact` describes.
Error unsupported_regex(std::string need, std::string_view fact);

}  // namespace moracle
