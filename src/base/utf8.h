// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moracle {

/// One character, or one broken sequence, at the start of a text.
struct Utf8Char {
  enum class State : uint8_t {
    kWhole,   ///< a character: `code`, in `length` bytes
    kOpen,    ///< the whole text is `length` bytes of a character that more bytes may complete
    kBroken,  ///< `length` bytes that no continuation can make valid
  };
  State state = State::kBroken;
  uint32_t code = 0;
  size_t length = 0;
};

/// Reads the start of `text`, which must not be empty. A broken sequence is as long as Unicode's
/// "maximal subpart". One U+FFFD for each then gives the same text as every other decoder.
Utf8Char first_char(std::string_view text);

/// Offset of the first byte that does not begin a whole character.
std::optional<size_t> first_invalid_utf8(std::string_view text);

/// Appends a code point, which must be a Unicode scalar value.
void append_utf8(uint32_t code, std::string& out);

}  // namespace moracle
