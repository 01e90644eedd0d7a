#include "base/base64.h"

#include <cstdint>

namespace moracle {
namespace {

/// The value of a digit; -1 for another character.
int digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const bool is_last = at + 4 == text.size();
    const size_t padding = !is_last || text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) {
      const int value = i + padding < 4 ? digit(text[at + i]) : 0;
      if (value < 0) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(value);
    }
    if ((bits & ((1U << (8 * padding)) - 1)) != 0) return std::nullopt;
    for (size_t i = 0; i + padding < 3; ++i) bytes += static_cast<char>(bits >> (16 - 8 * i));
  }
  return bytes;
}

}  // namespace moracle
