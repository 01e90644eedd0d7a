#include "base/printable.h"

#include <cstdint>

#include "base/text.h"

namespace moracle {
namespace {

struct Character {
  size_t bytes = 0;  // 0: no valid UTF-8 starts here
  uint32_t code = 0;
};

Character character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes > text.size()) return {};
  uint32_t code = lead & (0x7f >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  if (code < kLeast[bytes] || code > 0x10ffff || surrogate) return {};
  return {bytes, code};
}

// True for characters that a terminal executes instead of showing.
bool is_command(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) {
    return code >= first && code <= last;
  };
  return within(0, 0x1f) || within(0x7f, 0x9f) ||                                       // controls
         within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069) ||  // direction
         within(0x2028, 0x2029);  // line and paragraph
}

std::string escaped(std::string_view bytes) {
  if (bytes == "\n") return "\\n";
  if (bytes == "\r") return "\\r";
  if (bytes == "\t") return "\\t";
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return text;
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Character c = character_at(text.substr(i));
    const size_t bytes = c.bytes == 0 ? 1 : c.bytes;
    if (i + bytes > most) return str(out, "… (", text.size(), " bytes)");
    const std::string_view part = text.substr(i, bytes);
    out += c.bytes == 0 || is_command(c.code) ? escaped(part) : std::string(part);
    i += bytes;
  }
  return out;
}

std::string quote(std::string_view text) {
  return "'" + printable(text, 200) + "'";
}

}  // namespace moracle
