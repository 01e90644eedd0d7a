// Byte-level BPE alphabet (GPT-2): one printable character per byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moracle {

/// Character of each byte: the byte itself if it is printable Latin-1, otherwise the next free code
/// point from U+0100 on.
const std::array<uint32_t, 256>& byte_level_alphabet();

/// Appends each byte's character to `out`.
void append_byte_level(std::string_view bytes, std::string& out);

/// Returns the bytes of a token in this alphabet. A token with any other character is returned
/// unchanged.
std::string bytes_of_token(std::string_view token);

}  // namespace moracle
