#include "text/jinja/syntax/literal.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "text/jinja/values/unicode.h"

namespace moracle::jinja {

namespace {

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// As Python's unicode_escape decoder: non-ASCII characters arrive as escapes, so a backslash before
// one is dropped and the escape's text stays.
std::string escaped_name(uint32_t c) {
  char text[16];
  std::snprintf(text, sizeof text, c < 0x100 ? "x%02x" : c < 0x10000 ? "u%04x" : "U%08x", c);
  return text;
}

struct Escape {
  uint32_t value;
  size_t length;
};

// Reads the digits of \x, \u, \U and of octal escapes, starting at `at`.
Result<Escape> read_code(std::string_view body, size_t at, int base, size_t least, size_t most,
                         int line) {
  uint32_t value = 0;
  size_t n = 0;
  for (; n < most && at + n < body.size() && digit_value(body[at + n]) < base; ++n) {
    value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit_value(body[at + n]));
  }
  if (n < least || value > 0x10FFFF) return syntax_error(line, "a truncated or illegal escape");
  if (value >= 0xD800 && value <= 0xDFFF) return unsupported_error(line, "an escaped surrogate");
  return Escape{value, n};
}

// Length of a run of digits in `base` with single underscores between them. `after_prefix` allows a
// leading underscore.
size_t digits_length(std::string_view text, int base, bool after_prefix = false) {
  size_t length = 0;
  while (length < text.size()) {
    const bool underscore = text[length] == '_' && (length > 0 || after_prefix);
    const size_t digit = length + (underscore ? 1 : 0);
    if (digit >= text.size() || digit_value(text[digit]) >= base) break;
    length = digit + 1;
  }
  return length;
}

std::string without_underscores(std::string_view text) {
  std::string digits;
  for (char c : text) {
    if (c != '_') digits += c;
  }
  return digits;
}

// Length of a float at the start of `text`; 0 for an integer or no number.
size_t float_length(std::string_view text) {
  size_t length = digits_length(text, 10);
  if (length == 0) return 0;
  bool is_float = false;
  if (length < text.size() && text[length] == '.') {
    if (const size_t n = digits_length(text.substr(length + 1), 10)) {
      length += 1 + n;
      is_float = true;
    }
  }
  if (length < text.size() && (text[length] == 'e' || text[length] == 'E')) {
    size_t digits = length + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (const size_t n = digits < text.size() ? digits_length(text.substr(digits), 10) : 0) {
      length = digits + n;
      is_float = true;
    }
  }
  return is_float ? length : 0;
}

}  // namespace

Result<std::string> unescape(std::string_view body, int line) {
  std::string out;
  for (size_t at = 0; at < body.size();) {
    if (body[at] != '\\') {
      out += body[at++];
      continue;
    }
    if (at + 1 == body.size()) return syntax_error(line, "a string that ends in a backslash");
    const char kind = body[at + 1];
    at += 2;
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t i = kLetters.find(kind); i != kLetters.npos) {
      out += kMeanings[i];
    } else if (kind == '\n') {
      // Line continuation: drop the backslash and the line break.
    } else if (kind == 'x' || kind == 'u' || kind == 'U') {
      const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
      MORACLE_TRY(const Escape escape, read_code(body, at, 16, digits, digits, line));
      append_utf8(escape.value, out);
      at += escape.length;
    } else if (kind >= '0' && kind <= '7') {
      MORACLE_TRY(const Escape escape, read_code(body, at - 1, 8, 1, 3, line));
      append_utf8(escape.value, out);
      at += escape.length - 1;
    } else if (kind == 'N') {
      return unsupported_error(line, "a '\\N{...}' escape");
    } else {
      const CodePoint c = code_point(body, at - 1);
      out += '\\';
      out += c.value < 0x80 ? std::string(1, kind) : escaped_name(c.value);
      at += c.bytes - 1;
    }
  }
  return out;
}

Result<Token> read_number(std::string_view text, bool after_dot, int line, size_t* length) {
  Token token{TokenKind::kInteger, "", line};
  if (const size_t n = after_dot ? 0 : float_length(text)) {
    *length = n;
    token.kind = TokenKind::kFloat;
    token.text = without_underscores(text.substr(0, n));
    const char* end = token.text.data() + token.text.size();
    const auto read = std::from_chars(token.text.data(), end, token.number);
    if (read.ec == std::errc::result_out_of_range) {
      // Out of range: from_chars leaves the number unset; Python gives 0.0 or inf.
      const size_t e = token.text.find_first_of("eE");
      token.number = e != token.text.npos && token.text[e + 1] == '-' ? 0.0 : HUGE_VAL;
    }
    return token;
  }
  int base = 10;
  size_t prefix = 0;
  if (text[0] == '0' && text.size() > 1) {
    const char mark = static_cast<char>(text[1] | 0x20);
    base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    prefix = base == 10 ? 0 : 2;
    if (prefix > 0 && digits_length(text.substr(2), base, true) == 0) base = 10, prefix = 0;
  }
  size_t n = digits_length(text.substr(prefix), base, prefix > 0);
  if (prefix == 0 && text[0] == '0') {
    // Only zeros may follow a leading zero.
    for (n = 1; n < text.size() &&
                (text[n] == '0' || (text[n] == '_' && n + 1 < text.size() && text[n + 1] == '0'));)
      ++n;
  }
  *length = prefix + n;
  token.text = without_underscores(text.substr(prefix, n));
  const char* end = token.text.data() + token.text.size();
  if (std::from_chars(token.text.data(), end, token.integer, base).ec != std::errc()) {
    return unsupported_error(line, str("the integer ", token.text, ", beyond 64 bits"));
  }
  return token;
}

}  // namespace moracle::jinja
