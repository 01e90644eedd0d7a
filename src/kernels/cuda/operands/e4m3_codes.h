// e4m3 codes of 4-bit weights, four in a register. Plain C++, so that tests check every code
// without a GPU.
//
// Codes 0 to 16 of e4m3 are linear: code c is c · 2^-9. So the code of an integer of at most 16 is
// its sign and its magnitude, and its value is 512 times too small.
//
// Scales of e2m1 that are powers of two move into the codes. e4m3 has e2m1 · 2^d exactly for d from
// -8 to 6. So groups up to 14 binades below the largest scale of a row's 128 columns stay exact.
// Smaller ones are rounded to multiples of 2^-9, which is 2^-18 of the largest code.
#pragma once

#include <cstdint>

#include "layout/fragment_order.h"

namespace moracle::cuda {

using fragment_order::permute_bytes;

/// Value of 1 as a code of the functions for integers is 2^-9.
inline constexpr float kE4m3IntegerUnit = 512;

/// Codes of two's complement integers in the low nibbles of the bytes. Ignores the high nibbles.
constexpr uint32_t e4m3_of_nibbles(uint32_t nibbles) {
  const uint32_t negative = nibbles >> 3 & 0x01010101u;
  return ((nibbles & 0x07070707u) ^ negative * 7u) + negative * 129u;
}

/// The same for integers minus a zero point. Nibbles are 8 plus the integer. `base` has 120 minus
/// the zero point in each byte. Differences are at most 16.
constexpr uint32_t e4m3_of_differences(uint32_t nibbles, uint32_t base) {
  const uint32_t biased = (nibbles & 0x0f0f0f0fu) + base;  // 128 + difference
  const uint32_t negative = ~biased >> 7 & 0x01010101u;
  return ((biased & 0x1f1f1f1fu) ^ negative * 31u) + negative * 129u;
}

/// Binades below the largest scale that the table distinguishes. All codes of the last are 0.
inline constexpr int kE2m1Downs = 32;
/// The largest scale of the chunk belongs to codes of 2^6 times their value.
inline constexpr float kE2m1Unit = 1.0f / 64;

/// The code of the magnitude `code` of e2m1 times 2^(6 - down), rounded to nearest even.
constexpr uint8_t e4m3_of_e2m1(int code, int down) {
  constexpr uint64_t kHalves[8] = {0, 1, 2, 3, 4, 6, 8, 12};
  const uint64_t exact = kHalves[code] << 18;  // in units of 2^-13
  const int shift = down + 4;
  uint64_t units = exact >> shift;  // of 2^-9
  const uint64_t rest = exact - (units << shift), half = uint64_t{1} << (shift - 1);
  if (rest > half || (rest == half && units % 2 != 0)) ++units;
  if (units < 8) return static_cast<uint8_t>(units);
  uint64_t exponent = 1;
  while (units >= 16) units /= 2, ++exponent;  // at most two significant bits: exact
  return static_cast<uint8_t>(exponent << 3 | (units & 7));
}

/// Codes of the eight magnitudes of e2m1, four in a word, for each number of binades below.
struct E2m1Table {
  uint32_t words[2 * kE2m1Downs] = {};
  constexpr E2m1Table() {
    for (int down = 0; down < kE2m1Downs; ++down) {
      for (int code = 0; code < 8; ++code)
        words[2 * down + code / 4] |= uint32_t{e4m3_of_e2m1(code, down)} << (8 * (code % 4));
    }
  }
};

/// Codes of eight nibbles of layout mma16, in the order kFp4 (layout/fragment_order.h). `low` and
/// `high` are the table's words.
constexpr void spread_e2m1_codes(uint32_t nibbles, uint32_t low, uint32_t high,
                                 uint32_t (&fours)[2]) {
  const uint32_t magnitudes = nibbles & 0x77777777u, shifted = nibbles << 4;
  // Their high nibbles are the nibbles, whose highest bits are the signs.
  const uint32_t first = permute_bytes(shifted, nibbles, 0x5140);
  const uint32_t second = permute_bytes(shifted, nibbles, 0x7362);
  fours[0] = permute_bytes(low, high, magnitudes & 0xffffu) | (first & 0x80808080u);
  fours[1] = permute_bytes(low, high, magnitudes >> 16) | (second & 0x80808080u);
}

}  // namespace moracle::cuda
