#include "text/jinja/values/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace moracle::jinja {

namespace {

bool continues(std::string_view text, size_t at) {
  return at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80;
}

// Returns the start of the character that ends before byte `end`.
size_t previous(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && continues(text, at)) --at;
  return at;
}

// Characters with a context-dependent or multi-character case mapping.
bool has_special_case(uint32_t c, Case to) {
  if (c < 0x80) return false;
  if (to == Case::kLower) return c == 0x130 || c == 0x3A3;
  if (c == 0xDF || c == 0x149 || c == 0x1F0 || c == 0x390 || c == 0x3B0 || c == 0x587) return true;
  if (c >= 0x1E96 && c <= 0x1E9A) return true;
  if (c >= 0x1F50 && c <= 0x1FFC) return true;
  return (c >= 0xFB00 && c <= 0xFB06) || (c >= 0xFB13 && c <= 0xFB17);
}

}  // namespace

CodePoint code_point(std::string_view text, size_t at) {
  const Utf8Char first = first_char(text.substr(at));
  return {first.code, first.length};
}

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

size_t bytes_of_code_points(std::string_view text, size_t count) {
  size_t at = 0;
  for (; count > 0 && at < text.size(); --count) at += code_point(text, at).bytes;
  return at;
}

bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_printable(uint32_t c) {
  if (c < 0x80) return c >= 0x20 && c < 0x7F;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_cased(uint32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

bool is_line_break(uint32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::string_view strip(std::string_view text, Side side, std::optional<std::string_view> chars) {
  const auto strips = [&](size_t at) {
    const CodePoint c = code_point(text, at);
    if (!chars) return is_space(c.value);
    return chars->find(text.substr(at, c.bytes)) != std::string_view::npos;
  };
  if (side != Side::kRight) {
    while (!text.empty() && strips(0)) text.remove_prefix(code_point(text, 0).bytes);
  }
  if (side != Side::kLeft) {
    while (!text.empty()) {
      const size_t last = previous(text, text.size());
      if (!strips(last)) break;
      text = text.substr(0, last);
    }
  }
  return text;
}

std::optional<std::string> change_case(std::string_view text, Case to) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point(text, at);
    at += c.bytes;
    if (has_special_case(c.value, to)) return std::nullopt;
    const auto from = static_cast<utf8proc_int32_t>(c.value);
    const auto into = to == Case::kUpper   ? utf8proc_toupper(from)
                      : to == Case::kLower ? utf8proc_tolower(from)
                                           : utf8proc_totitle(from);
    append_utf8(static_cast<uint32_t>(into), out);
  }
  return out;
}

}  // namespace moracle::jinja
