// The signs of I-quants.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace moracle {

/// Eight signs from seven stored bits: bit 7 makes the number of minus signs even.
inline int signs_of_7(uint32_t bits) {
  bits &= 127;
  return static_cast<int>(bits | (std::popcount(bits) & 1u) << 7);
}

/// Byte j of entry s is 0xff if bit j of s is 1, else 0.
inline constexpr auto kSignMasks = [] {
  std::array<uint64_t, 256> masks{};
  for (uint32_t s = 0; s < 256; ++s) {
    for (uint32_t j = 0; j < 8; ++j)
      if ((s >> j & 1) != 0) masks[s] |= uint64_t{0xff} << (8 * j);
  }
  return masks;
}();

/// Two lines of four entries side by side.
inline uint64_t two_lines(uint32_t first, uint32_t second) {
  return first | uint64_t{second} << 32;
}

/// Stores eight positive codes with their signs: bit j of `signs` is 1 for minus. Negation is
/// ~code + 1; codes are above 0, so the sum of a byte never carries into the next.
inline void store_signed(uint64_t codes, int signs, int8_t* to) {
  const uint64_t mask = kSignMasks[static_cast<size_t>(signs)];
  codes = (codes ^ mask) + (mask & 0x0101'0101'0101'0101u);
  std::memcpy(to, &codes, sizeof codes);
}

}  // namespace moracle
