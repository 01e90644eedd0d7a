// The signs of I-quants.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

namespace moracle {

/// Byte j of entry s is 0xff if bit j of s is 1, which means minus, else 0.
inline constexpr auto kSignMasks = [] {
  std::array<uint64_t, 256> masks{};
  for (size_t s = 0; s < masks.size(); ++s) {
    for (size_t j = 0; j < 8; ++j)
      if ((s >> j & 1) != 0) masks[s] |= uint64_t{0xff} << (8 * j);
  }
  return masks;
}();

/// kSignMasks for eight signs stored in seven bits: bit 7 makes the number of minus signs even.
inline constexpr auto kSignMasksOf7 = [] {
  std::array<uint64_t, 128> masks{};
  for (size_t s = 0; s < masks.size(); ++s)
    masks[s] = kSignMasks[s | (std::popcount(s) % 2 == 0 ? 0 : 128)];
  return masks;
}();

/// Joins two grid rows of four entries.
inline uint64_t two_lines(uint32_t first, uint32_t second) {
  return first | uint64_t{second} << 32;
}

/// Stores eight positive codes with the signs of `mask`. Negation is ~code + 1; codes are above 0,
/// so the sum of a byte never carries into the next.
inline void store_signed(uint64_t codes, uint64_t mask, int8_t* to) {
  codes = (codes ^ mask) + (mask & 0x0101'0101'0101'0101u);
  std::memcpy(to, &codes, sizeof codes);
}

}  // namespace moracle
