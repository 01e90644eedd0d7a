#include "base/regex/regex.h"

#include <algorithm>

#include "base/regex/regex_properties.h"
#include "base/regex/regex_text.h"
#include "base/text.h"

namespace moracle {
namespace {

constexpr size_t kLongestPattern = 1 << 14;  // compiling takes quadratic time: 0.3 s for this much
constexpr unsigned kDeepestNesting = 250;

/// Oniguruma's Python syntax lacks possessive quantifiers, and has three constructs that Python
/// does not have: [[:alpha:]], (*NAME) and \K.
OnigSyntaxType python() {
  OnigSyntaxType syntax;
  onig_copy_syntax(&syntax, ONIG_SYNTAX_PYTHON);
  onig_set_syntax_op(&syntax, onig_get_syntax_op(&syntax) & ~ONIG_SYN_OP_POSIX_BRACKET);
  const unsigned added =
      ONIG_SYN_OP2_PLUS_POSSESSIVE_REPEAT | ONIG_SYN_OP2_PLUS_POSSESSIVE_INTERVAL;
  const unsigned removed = ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME | ONIG_SYN_OP2_ESC_CAPITAL_K_KEEP;
  onig_set_syntax_op2(&syntax, (onig_get_syntax_op2(&syntax) | added) & ~removed);
  return syntax;
}

/// Initializes Oniguruma once. Compiling and matching are safe in several threads after that.
OnigSyntaxType* prepared(RegexSyntax syntax) {
  static OnigSyntaxType for_python = [] {
    OnigEncoding utf8 = ONIG_ENCODING_UTF8;
    onig_initialize(&utf8, 1);
    // A setting of the whole process: there is none per pattern.
    onig_set_parse_depth_limit(std::min(onig_get_parse_depth_limit(), kDeepestNesting));
    define_own_properties();
    return python();
  }();
  switch (syntax) {
    case RegexSyntax::kOniguruma:
      return ONIG_SYNTAX_ONIGURUMA;
    case RegexSyntax::kPython:
      return &for_python;
    case RegexSyntax::kLiteral:
      break;
  }
  return ONIG_SYNTAX_ASIS;
}

/// Whether `pattern` has a subexpression call, `\g`.
bool calls(std::string_view pattern) {
  for (size_t at = pattern.find('\\'); at < pattern.size(); at = pattern.find('\\', at + 2)) {
    if (pattern.substr(at + 1, 1) == "g") return true;
  }
  return false;
}

Error unsupported(std::string need, std::string fact) {
  return {ErrorKind::kUnsupported, "", "", std::move(need), std::move(fact)};
}

}  // namespace

void Regex::FreeCode::operator()(re_pattern_buffer* code) const {
  onig_free(code);
}

Result<Regex> Regex::compile(std::string_view pattern, RegexSyntax syntax) {
  if (pattern.size() > kLongestPattern) {
    return unsupported(str("a pattern up to ", kLongestPattern, " bytes"),
                       str("it has ", pattern.size()));
  }
  // Nested calls take exponential time, and Oniguruma sets no limit to compiling them.
  if (syntax == RegexSyntax::kOniguruma && calls(pattern)) {
    return unsupported("a regular expression without subexpression calls", "it has \\g");
  }
  OnigSyntaxType* const rules = prepared(syntax);
  const std::string own =
      syntax == RegexSyntax::kOniguruma ? with_own_properties(pattern) : std::string(pattern);
  OnigRegex code = nullptr;
  OnigErrorInfo info{};
  const int result = onig_new(&code, regex_units(own), regex_units(own) + own.size(),
                              ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, rules, &info);
  if (result == ONIG_NORMAL) return Regex(Code(code));
  return unsupported("a regular expression that Oniguruma can compile",
                     regex_message(result, &info));
}

}  // namespace moracle
