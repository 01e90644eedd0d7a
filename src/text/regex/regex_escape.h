// One escape or plain character of an Oniguruma regular expression.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// What an escape or a plain character means, in PCRE2's words.
struct RegexAtom {
  enum class Kind : uint8_t {
    kCode,    ///< the character `code`
    kClass,   ///< `text` goes between the brackets of a class
    kNoneOf,  ///< any character but those that `text` in brackets has
    kAnchor,  ///< `text` is an assertion
  };
  Kind kind = Kind::kCode;
  uint32_t code = 0;
  std::string text;
};

/// Reads what stands at `at` in `pattern`, which must not be its end, and moves `at` behind it.
/// Errors: kUnsupported with `need` and `fact`.
Result<RegexAtom> read_regex_atom(std::string_view pattern, size_t& at);

/// `code` as PCRE2 reads it inside and outside of a class, never as syntax.
std::string regex_literal(uint32_t code);

/// kUnsupported, for a construct of which `fact` says what it is.
Error unsupported_regex(std::string need, std::string_view fact);

}  // namespace moracle
