// Codes of which fewer occur than their type has, and the numbers of a few bits that stand for
// them.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// The sixteen codes of CodeSet::kIq4. They lie closer together near 0.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

/// Bits of the numbers that stand for the codes of a set; 8 for kAny.
constexpr int code_bits(CodeSet set) {
  switch (set) {
    case CodeSet::kSigned6:
      return 6;
    case CodeSet::kSigned5:
    case CodeSet::kUnsigned5:
      return 5;
    case CodeSet::kIq4:
      return 4;
    case CodeSet::kAny:
      break;
  }
  return 8;
}

/// Columns whose numbers fill whole 32-bit words in planes of 4 bits and of the others.
constexpr int64_t code_unit(CodeSet set) {
  return code_bits(set) == 6 ? 16 : code_bits(set) == 5 ? 32 : 8;
}

/// The code that a number stands for. Integers have the numbers 0, 1, … from the least one on.
constexpr int8_t code_of(CodeSet set, int number) {
  switch (set) {
    case CodeSet::kSigned6:
      return static_cast<int8_t>(number - 32);
    case CodeSet::kSigned5:
      return static_cast<int8_t>(number - 16);
    case CodeSet::kIq4:
      return kIq4Values[number];
    default:
      return static_cast<int8_t>(number);
  }
}

/// The number of a code of the set.
constexpr int number_of(CodeSet set, int8_t code) {
  if (set != CodeSet::kIq4) return code - code_of(set, 0);
  int number = 0;
  while (number < 15 && kIq4Values[number] != code) ++number;
  return number;
}

}  // namespace moracle
