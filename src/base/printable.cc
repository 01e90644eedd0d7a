#include "base/printable.h"

#include <cstdint>

#include "base/text.h"
#include "base/utf8.h"

namespace moracle {
namespace {

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
    const Utf8Char c = first_char(text.substr(i));
    const bool whole = c.state == Utf8Char::State::kWhole;
    const size_t bytes = whole ? c.length : 1;
    if (i + bytes > most) return str(out, "… (", text.size(), " bytes)");
    const std::string_view part = text.substr(i, bytes);
    out += whole && !is_command(c.code) ? std::string(part) : escaped(part);
    i += bytes;
  }
  return out;
}

std::string quote(std::string_view text) {
  return "'" + printable(text, 200) + "'";
}

}  // namespace moracle
