#include "text/tokenizer/utf8.h"

namespace moracle {

std::string shortened(std::string_view text) {
  constexpr size_t kShown = 60;
  size_t end = 0;
  while (end < text.size() && end < kShown) end += first_char(text.substr(end)).length;
  return std::string(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

bool is_white_space(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

size_t without_space_at_end(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t last = last_char(text.substr(0, end));
    if (!is_white_space(first_char(text.substr(last)).code)) break;
    end = last;
  }
  return end;
}

size_t behind_space_at_start(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Char next = first_char(text.substr(begin));
    if (!is_white_space(next.code)) break;
    begin += next.length;
  }
  return begin;
}

}  // namespace moracle
