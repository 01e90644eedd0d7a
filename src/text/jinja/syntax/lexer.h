// Splits template text into tokens, with Jinja's trim_blocks and lstrip_blocks on, as in
// transformers.
#pragma once

#include <string>
#include <vector>

#include "moracle/base.h"
#include "text/jinja/limits.h"

namespace moracle::jinja {

enum class TokenKind {
  kData,           ///< text outside of tags, printed unchanged
  kBlockBegin,     ///< {%
  kBlockEnd,       ///< %}
  kVariableBegin,  ///< {{
  kVariableEnd,    ///< }}
  kName,
  kString,  ///< text after escapes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
  int64_t integer = 0;
  double number = 0;

  bool is(TokenKind which, std::string_view what) const { return kind == which && text == what; }
  bool is_name(std::string_view what) const { return is(TokenKind::kName, what); }
  bool is_operator(std::string_view what) const { return is(TokenKind::kOperator, what); }
};

/// Syntax error in the template. ChatTemplate adds the file.
Error syntax_error(int line, std::string fact);
/// Error for a Jinja construct that this renderer lacks.
Error unsupported_error(int line, std::string construct);

/// Splits `text`, which must be valid UTF-8, into tokens. The last token is kEnd. Errors: unclosed
/// tags, unbalanced brackets, invalid characters or escapes.
Result<std::vector<Token>> tokenize(std::string_view text);

}  // namespace moracle::jinja
