// The alphabet of byte-level BPE: 256 printable characters, one for each byte.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moracle {

/// The character that stands for each byte: itself where it is printable Latin-1, otherwise the
/// next free code point from U+0100 on. GPT-2 chose it; every byte-level vocabulary is written in
/// it.
const std::array<uint32_t, 256>& byte_level_alphabet();

/// Appends `bytes` to `out`, each byte as its character.
void append_byte_level(std::string_view bytes, std::string& out);

/// The bytes that `token` stands for. A token with a character from outside of the alphabet stands
/// for itself.
std::string bytes_of_token(std::string_view token);

}  // namespace moracle
