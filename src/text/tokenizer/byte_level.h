// The alphabet of byte-level BPE: 256 printable characters, one for each byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moracle {

/// The character for each byte: the byte itself if it is printable Latin-1, otherwise the next free
/// code point from U+0100 on. GPT-2 introduced this alphabet; every byte-level vocabulary uses it.
const std::array<uint32_t, 256>& byte_level_alphabet();

/// Appends `bytes` to `out`, each byte as its character.
void append_byte_level(std::string_view bytes, std::string& out);

/// Returns the bytes that `token` represents. A token with a character outside the alphabet
/// represents itself.
std::string bytes_of_token(std::string_view token);

}  // namespace moracle
