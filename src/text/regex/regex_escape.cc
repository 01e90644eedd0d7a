#include "text/regex/regex_escape.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "base/try.h"
#include "text/tokenizer/utf8.h"

namespace moracle {
namespace {

using Kind = RegexAtom::Kind;

constexpr const char* kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
// Oniguruma's own Latin-1 table counts superscript digits and fractions as word characters.
constexpr const char* kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";

constexpr std::string_view kCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs", "Cn", "Any"};

constexpr std::array<std::string_view, 2> kLongNames[] = {
    {"Letter", "L"},           {"Mark", "M"},      {"Number", "N"}, {"Punctuation", "P"},
    {"Symbol", "S"},           {"Separator", "Z"}, {"Other", "C"},  {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"}};

bool is_alnum(uint32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/// Parses `digits` in base 16, up to U+10FFFF and no surrogate.
Result<uint32_t> scalar_value(std::string_view digits) {
  uint32_t code = 0;
  bool good = !digits.empty() && digits.size() <= 8;
  for (const char c : digits) {
    const size_t digit = std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    good = good && digit != std::string_view::npos && code <= 0x10FFFF;
    code = good ? code << 4 | static_cast<uint32_t>(digit) : 0;
  }
  if (!good || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    return unsupported_regex("code points in hexadecimal digits", std::string(digits));
  }
  return code;
}

/// Reads the part after `\p` or `\P`: "{name}", "{^name}".
Result<RegexAtom> read_property(std::string_view pattern, size_t& at, bool negated) {
  const size_t close = pattern.find('}', at);
  if (at == pattern.size() || pattern[at] != '{' || close == std::string_view::npos) {
    return unsupported_regex("properties as \\p{name}", "\\p without braces");
  }
  std::string_view name = pattern.substr(at + 1, close - at - 1);
  at = close + 1;
  if (name.substr(0, 1) == "^") {
    negated = !negated;
    name.remove_prefix(1);
  }
  for (const auto& [word, category] : kLongNames) name = name == word ? category : name;

  const bool is_category =
      std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_alnum(static_cast<uint8_t>(c)) || c == '_';
  });
  if (!is_category && !is_name) {
    return unsupported_regex("a category or a script in \\p{...}", std::string(name));
  }
  // PCRE2 checks whether a script of this name exists.
  const bool is_binary = name == "Alphabetic" || name == "White_Space";
  const char* prefix = is_category || is_binary ? "" : "sc:";
  return RegexAtom{Kind::kClass, 0, str(negated ? "\\P{" : "\\p{", prefix, name, '}')};
}

/// Reads the part after `\x`: "{h...}", or two digits of an ASCII character. In Oniguruma, two
/// digits above ASCII are a byte.
Result<RegexAtom> read_hex(std::string_view pattern, size_t& at) {
  const bool braces = at < pattern.size() && pattern[at] == '{';
  const size_t begin = braces ? at + 1 : at;
  const size_t end = braces ? pattern.find('}', begin) : std::min(at + 2, pattern.size());
  if (end == std::string_view::npos || (!braces && end - begin != 2)) {
    return unsupported_regex("\\x{...} or \\x with two digits", std::string(pattern.substr(begin)));
  }
  MORACLE_TRY(const uint32_t code, scalar_value(pattern.substr(begin, end - begin)));
  if (!braces && code > 0x7F) return unsupported_regex("bytes of ASCII after \\x", "\\x above 7f");
  at = braces ? end + 1 : end;
  return RegexAtom{Kind::kCode, code, {}};
}

}  // namespace

Error unsupported_regex(std::string need, std::string_view fact) {
  return {ErrorKind::kUnsupported, "", "", std::move(need), shortened(fact)};
}

std::string regex_literal(uint32_t code) {
  if (is_alnum(code)) return std::string(1, static_cast<char>(code));
  std::ostringstream out;
  out << "\\x{" << std::hex << code << '}';
  return std::move(out).str();
}

Result<RegexAtom> read_regex_atom(std::string_view pattern, size_t& at) {
  const Utf8Char first = first_char(pattern.substr(at));
  at += first.length;
  if (first.code != '\\') return RegexAtom{Kind::kCode, first.code, {}};
  if (at == pattern.size()) return unsupported_regex("a character after \\", "the pattern's end");

  const Utf8Char escaped = first_char(pattern.substr(at));
  at += escaped.length;
  const auto code = [](uint32_t c) { return RegexAtom{Kind::kCode, c, {}}; };
  if (!is_alnum(escaped.code)) return code(escaped.code);
  switch (escaped.code) {
    case 'a':
      return code(0x07);
    case 't':
      return code(0x09);
    case 'n':
      return code(0x0A);
    case 'v':
      return code(0x0B);
    case 'f':
      return code(0x0C);
    case 'r':
      return code(0x0D);
    case 'e':
      return code(0x1B);
    case 's':
      return RegexAtom{Kind::kClass, 0, kSpace};
    case 'S':
      return RegexAtom{Kind::kNoneOf, 0, kSpace};
    case 'w':
      return RegexAtom{Kind::kClass, 0, kWord};
    case 'W':
      return RegexAtom{Kind::kNoneOf, 0, kWord};
    case 'd':
      return RegexAtom{Kind::kClass, 0, "\\p{Nd}"};
    case 'D':
      return RegexAtom{Kind::kClass, 0, "\\P{Nd}"};
    case 'p':
      return read_property(pattern, at, false);
    case 'P':
      return read_property(pattern, at, true);
    case 'x':
      return read_hex(pattern, at);
    case 'u': {
      if (pattern.size() - at < 4) return unsupported_regex("four digits after \\u", "fewer");
      MORACLE_TRY(const uint32_t value, scalar_value(pattern.substr(at, 4)));
      at += 4;
      return code(value);
    }
    case 'A':
      return RegexAtom{Kind::kAnchor, 0, "\\A"};
    case 'z':
      return RegexAtom{Kind::kAnchor, 0, "\\z"};
    case 'Z':
      return RegexAtom{Kind::kAnchor, 0, "\\Z"};
    case 'b':
      return RegexAtom{
          Kind::kAnchor, 0,
          str("(?:(?<=[", kWord, "])(?![", kWord, "])|(?<![", kWord, "])(?=[", kWord, "]))")};
    default:
      return unsupported_regex("escapes that mean the same in PCRE2",
                               str('\\', static_cast<char>(escaped.code)));
  }
}

}  // namespace moracle
