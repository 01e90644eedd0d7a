// Translates regular expressions of Oniguruma, which tokenizer.json files use, to those of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "moracle/base.h"

namespace moracle {

/// Rewrites `pattern` so that PCRE2, with UTF, UCP and MULTILINE, matches what Oniguruma matches.
/// The dialects differ silently, so every construct is checked ("there" means in Oniguruma):
///  - `\s` is White_Space there; PCRE2 adds U+180E. `\w` and `\b` there know marks and connectors.
///  - `\p{Greek}` is the script there, the script extensions in PCRE2.
///  - `x{1,3}+` repeats the repeat there and is possessive in PCRE2; `x{2}?` is optional there.
///  - `[a-z&&[^x]]` intersects there; `&&` is two plain characters in PCRE2.
///  - `\v` and `\h` are a vertical tab and a hex digit there, classes of white space in PCRE2.
///  - `(?m:` lets the dot match newlines there, and case-insensitive text matches whole foldings
///    ("ss" matches U+00DF); PCRE2 cannot do the latter, so such text is refused.
/// Letters, marks and other properties depend on the Unicode version of each library. Characters
/// newer than PCRE2's tables are unassigned here. Errors: kUnsupported with `need` and `fact`; the
/// caller adds file and place.
Result<std::string> to_pcre2(std::string_view pattern);

}  // namespace moracle
