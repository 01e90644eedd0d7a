#include "base/utf8.h"

namespace moracle {

Utf8Char first_char(std::string_view text) {
  using State = Utf8Char::State;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {State::kWhole, lead, 1};
  if (lead < 0xC2 || lead > 0xF4) return {State::kBroken, 0, 1};

  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte alone excludes overlong forms, surrogates and codes above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {State::kOpen, 0, i};
    const bool fits = i == 1 ? byte(i) >= low && byte(i) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {State::kBroken, 0, i};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {State::kWhole, code, length};
}

std::optional<size_t> first_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = first_char(text.substr(at));
    if (next.state != Utf8Char::State::kWhole) return at;
    at += next.length;
  }
  return std::nullopt;
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr uint32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[tail] | code >> 6 * tail);
  for (int i = tail - 1; i >= 0; --i) out += static_cast<char>(0x80u | (code >> 6 * i & 0x3Fu));
}

}  // namespace moracle
