// Template text → tokens, with Jinja's white space control (trim_blocks and lstrip_blocks on, as
// transformers sets them).
#pragma once

#include <string>
#include <vector>

#include "text/jinja/limits.h"
#include "moracle/base.h"

namespace moracle::jinja {

enum class TokenKind {
  kData,           ///< text between tags, as it is printed
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

/// An Error in the template's text; the file is filled in by ChatTemplate.
Error syntax_error(int line, std::string fact);
/// The Error of something in Jinja that this renderer leaves out.
Error unsupported_error(int line, std::string construct);

/// The last token is kEnd. `text` is valid UTF-8.
/// Errors: unclosed tags, unbalanced brackets, characters and escapes that Jinja refuses.
Result<std::vector<Token>> tokenize(std::string_view text);

}  // namespace moracle::jinja
