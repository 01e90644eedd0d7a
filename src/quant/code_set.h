// Codes of which fewer occur than their type has, and the numbers of a few bits that stand for
// them.
#pragma once

#include <array>
#include <iterator>

#include "moracle/quant.h"

namespace moracle {

/// The codes of a set in a code book, by number. A set with fewer than 16 codes repeats its first.
using CodeBook = std::array<int8_t, 16>;

/// They lie closer together near 0.
inline constexpr CodeBook kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr CodeBook kCodeBooks[] = {
    kIq4Values,
    {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15},
    {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62},
    {8, 25, 43, -8, -25, -43, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8},
    {1, 7, 9, -1, -7, -9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
};

/// True if the codes of a set lie in a code book.
constexpr bool has_code_book(CodeSet set) {
  return set >= CodeSet::kIq4;
}
constexpr const CodeBook& code_book(CodeSet set) {
  return kCodeBooks[static_cast<size_t>(set) - static_cast<size_t>(CodeSet::kIq4)];
}

/// Bits of the numbers that stand for the codes of a set; 8 for kAny.
constexpr int code_bits(CodeSet set) {
  switch (set) {
    case CodeSet::kSigned6:
      return 6;
    case CodeSet::kSigned5:
    case CodeSet::kUnsigned5:
      return 5;
    case CodeSet::kAny:
      return 8;
    default:
      return 4;
  }
}

/// Columns whose numbers fill whole 32-bit words in planes of 4 bits and of the others.
constexpr int64_t code_unit(CodeSet set) {
  return code_bits(set) == 6 ? 16 : code_bits(set) == 5 ? 32 : 8;
}

/// The code that a number stands for, of a set without a code book: the numbers 0, 1, … from the
/// least code on.
constexpr int8_t integer_code(CodeSet set, int number) {
  switch (set) {
    case CodeSet::kSigned6:
      return static_cast<int8_t>(number - 32);
    case CodeSet::kSigned5:
      return static_cast<int8_t>(number - 16);
    default:
      return static_cast<int8_t>(number);
  }
}

/// The code that a number stands for.
constexpr int8_t code_of(CodeSet set, int number) {
  return has_code_book(set) ? code_book(set)[static_cast<size_t>(number)]
                            : integer_code(set, number);
}

/// The numbers of all bytes in each code book; 0 for bytes that are no codes of it.
inline constexpr auto kCodeNumbers = [] {
  std::array<std::array<uint8_t, 256>, std::size(kCodeBooks)> numbers{};
  for (size_t book = 0; book < numbers.size(); ++book) {
    for (uint8_t number = 16; number-- > 0;)
      numbers[book][static_cast<uint8_t>(kCodeBooks[book][number])] = number;
  }
  return numbers;
}();

/// The number of a code of the set.
constexpr int number_of(CodeSet set, int8_t code) {
  if (!has_code_book(set)) return code - integer_code(set, 0);
  return kCodeNumbers[static_cast<size_t>(set) - static_cast<size_t>(CodeSet::kIq4)]
                     [static_cast<uint8_t>(code)];
}

/// Scales of these sets are integers times d · factor_unit, d the f16 number of the block
/// (QuantKey::scale_dtype kI8). Layouts store d: the product may be too small for an f16 number.
constexpr float factor_unit(CodeSet set) {
  switch (set) {
    case CodeSet::kIq3Xxs:
      return 0.25f;
    case CodeSet::kIq2:
    case CodeSet::kIq1:
      return 0.125f;
    default:
      return 1;
  }
}

/// The key without its set, for layouts and kernels that know none.
constexpr QuantKey with_any_codes(QuantKey key) {
  if (factor_unit(key.codes) != 1) key.scale_dtype = DType::kF32;
  return with_codes(key, CodeSet::kAny);
}

}  // namespace moracle
