#include "text/jinja/syntax/lexer.h"

#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "text/jinja/syntax/literal.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool continues_name(char c) {
  return starts_name(c) || (c >= '0' && c <= '9');
}

// As Jinja: convert line endings to \n, and drop one at the end of the text.
std::string normalized(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : source_(normalized(text)), text_(source_) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) MORACLE_CHECK(read_data());
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string text) {
    tokens_.push_back(Token{kind, std::move(text), line_});
  }

  bool looks_at(std::string_view what) const { return text_.substr(at_, what.size()) == what; }

  // Advances and counts lines.
  void skip(size_t bytes) {
    const std::string_view passed = text_.substr(at_, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    if (!passed.empty()) line_starts_ = passed.back() == '\n';
    at_ += passed.size();
  }

  void skip_space() {
    const std::string_view rest = text_.substr(at_);
    skip(rest.size() - strip(rest, Side::kLeft).size());
  }

  // Consumes the white space control after an opening tag: '-', '+' or none.
  char take_sign() {
    const char c = at_ < text_.size() ? text_[at_] : ' ';
    if (c != '-' && c != '+') return ' ';
    skip(1);
    return c;
  }

  // Returns the text before a tag, stripped as '-' or lstrip_blocks demands.
  std::string_view before_tag(std::string_view data, char sign, bool variable) const {
    if (sign == '-') return strip(data, Side::kRight);
    if (sign == '+' || variable) return data;
    const size_t newline = data.rfind('\n');
    const size_t start = newline == data.npos ? 0 : newline + 1;
    if (newline == data.npos && !line_starts_) return data;
    return strip(data.substr(start), Side::kLeft).empty() ? data.substr(0, start) : data;
  }

  void push_data(std::string_view data, size_t length) {
    if (!data.empty()) push(TokenKind::kData, std::string(data));
    skip(length);
  }

  // Reads the text before a tag, then the tag.
  Status read_data() {
    const std::string_view rest = text_.substr(at_);
    size_t length = 0;
    for (;; ++length) {
      length = std::min(rest.find('{', length), rest.size());
      if (length + 1 >= rest.size()) {
        push_data(rest, rest.size());
        return {};
      }
      const char next = rest[length + 1];
      if (next == '%' || next == '{' || next == '#') break;
    }
    const char kind = rest[length + 1];
    const char sign = length + 2 < rest.size() ? rest[length + 2] : ' ';
    push_data(before_tag(rest.substr(0, length), sign, kind == '{'), length);
    const int line = line_;
    skip(2);
    take_sign();
    if (kind == '#') return skip_comment(line);
    if (kind == '%' && take_raw_begin()) return read_raw(line);
    push(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kVariableBegin, "");
    return read_code(kind == '%');
  }

  // Strips after a closing tag: all white space after '-', one line break after blocks and comments
  // (trim_blocks).
  void close(char sign, bool variable) {
    if (sign == '-') {
      skip_space();
    } else if (!variable && sign != '+' && looks_at("\n")) {
      skip(1);
    }
  }

  Status skip_comment(int line) {
    const size_t end = text_.find("#}", at_);
    if (end == text_.npos) return syntax_error(line, "a comment without its end '#}'");
    const char sign = end > at_ ? text_[end - 1] : ' ';
    skip(end + 2 - at_);
    close(sign, false);
    return {};
  }

  // Consumes "raw %}" after "{%".
  bool take_raw_begin() {
    std::string_view rest = strip(text_.substr(at_), Side::kLeft);
    if (rest.substr(0, 3) != "raw") return false;
    rest = strip(rest.substr(3), Side::kLeft);
    const bool dash = rest.substr(0, 3) == "-%}";
    if (!dash && rest.substr(0, 2) != "%}") return false;
    skip(text_.size() - at_ - rest.size() + (dash ? 3 : 2));
    if (dash) skip_space();
    return true;
  }

  // Reads text up to "{% endraw %}", which is printed unchanged.
  Status read_raw(int line) {
    for (size_t from = at_;; ++from) {
      from = text_.find("{%", from);
      if (from == text_.npos) return syntax_error(line, "'{% raw %}' without '{% endraw %}'");
      std::string_view rest = text_.substr(from + 2);
      const char sign = rest.empty() ? ' ' : rest[0];
      if (sign == '-' || sign == '+') rest.remove_prefix(1);
      rest = strip(rest, Side::kLeft);
      if (rest.substr(0, 6) != "endraw") continue;
      rest = strip(rest.substr(6), Side::kLeft);
      const char end_sign = rest.empty() ? ' ' : rest[0];
      if (end_sign == '-' || end_sign == '+') rest.remove_prefix(1);
      if (rest.substr(0, 2) != "%}") continue;
      push_data(before_tag(text_.substr(at_, from - at_), sign, false), from - at_);
      skip(text_.size() - at_ - rest.size() + 2);
      close(end_sign, false);
      return {};
    }
  }

  // True at the tag's end. All brackets must be closed.
  bool take_end(bool block) {
    if (!brackets_.empty()) return false;
    const std::string_view end = block ? "%}" : "}}";
    char sign = ' ';
    if (looks_at("-") || (block && looks_at("+"))) sign = text_[at_];
    if (text_.substr(at_ + (sign == ' ' ? 0 : 1), 2) != end) return false;
    push(block ? TokenKind::kBlockEnd : TokenKind::kVariableEnd, "");
    skip(sign == ' ' ? 2 : 3);
    close(sign, !block);
    return true;
  }

  // Reads the tokens inside a tag, including its end.
  Status read_code(bool block) {
    const int line = line_;
    while (true) {
      if (at_ >= text_.size()) {
        return syntax_error(line, block ? "'{%' without '%}'" : "'{{' without '}}'");
      }
      if (take_end(block)) return {};
      const char c = text_[at_];
      if (is_space(code_point(text_, at_).value)) {
        skip_space();
      } else if (c >= '0' && c <= '9') {
        size_t length = 0;
        const bool after_dot = text_[at_ - 1] == '.';
        MORACLE_TRY(Token token, read_number(text_.substr(at_), after_dot, line_, &length));
        tokens_.push_back(std::move(token));
        skip(length);
      } else if (starts_name(c)) {
        size_t length = 1;
        while (at_ + length < text_.size() && continues_name(text_[at_ + length])) ++length;
        push(TokenKind::kName, std::string(text_.substr(at_, length)));
        skip(length);
      } else if (c == '\'' || c == '"') {
        MORACLE_CHECK(read_string(c));
      } else {
        MORACLE_CHECK(read_operator());
      }
    }
  }

  Status read_string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) return syntax_error(line_, "a string without its closing quote");
    MORACLE_TRY(std::string text, unescape(text_.substr(at_ + 1, end - at_ - 1), line_));
    push(TokenKind::kString, std::move(text));
    skip(end + 1 - at_);
    return {};
  }

  Status read_operator() {
    const std::string_view two = text_.substr(at_, 2);
    const std::string_view one = two.substr(0, 1);
    for (std::string_view known : {"//", "**", "==", "!=", ">=", "<="}) {
      if (two != known) continue;
      push(TokenKind::kOperator, std::string(two));
      return skip(2), Status();
    }
    if (std::string_view("+-*/%~[](){}<>=.:|,;").find(one[0]) == std::string_view::npos) {
      const CodePoint c = code_point(text_, at_);
      return c.value >= 0x80
                 ? unsupported_error(line_, str("the character '", text_.substr(at_, c.bytes),
                                                "' outside of strings"))
                 : syntax_error(line_, str("an unexpected character '", one, "'"));
    }
    MORACLE_CHECK(balance(one[0]));
    push(TokenKind::kOperator, std::string(one));
    return skip(1), Status();
  }

  Status balance(char c) {
    if (c == '(') brackets_ += ')';
    if (c == '[') brackets_ += ']';
    if (c == '{') brackets_ += '}';
    if (c != ')' && c != ']' && c != '}') return {};
    if (brackets_.empty() || brackets_.back() != c) {
      return syntax_error(line_, str("an unexpected '", std::string(1, c), "'"));
    }
    brackets_.pop_back();
    return {};
  }

  std::string source_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // at the start of a line
  std::string brackets_;     // stack of expected closing brackets
  std::vector<Token> tokens_;
};

}  // namespace

Error syntax_error(int line, std::string fact) {
  return Error{ErrorKind::kBadFile, "", str("line ", line), "a well-formed template",
               std::move(fact)};
}

Error unsupported_error(int line, std::string construct) {
  return Error{ErrorKind::kUnsupported, "", str("line ", line), kRenderable, std::move(construct)};
}

Result<std::vector<Token>> tokenize(std::string_view text) {
  return Lexer(text).run();
}

}  // namespace moracle::jinja
