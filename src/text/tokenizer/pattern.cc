#include "text/tokenizer/pattern.h"

#include <utility>

#include "base/try.h"

namespace moracle {

Result<Regex> compile_pattern(const JsonField& field) {
  const bool is_regex = field.contains("Regex");
  const JsonField source = field[is_regex ? "Regex" : "String"];
  MORACLE_TRY(const std::string text, source.text());
  return placed(Regex::compile(text, is_regex ? RegexSyntax::kOniguruma : RegexSyntax::kLiteral),
                source);
}

Result<Regex> placed(Result<Regex> regex, const JsonField& field) {
  if (regex) return regex;
  Error error = std::move(regex).error();
  error.file = field.file();
  error.place = field.place();
  return error;
}

}  // namespace moracle
