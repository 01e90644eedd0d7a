// Categories of characters in Unicode 16, independent of the installed libraries: tokenizers must
// cut texts as the programs did that made their ids.
#pragma once

#include <cstdint>
#include <vector>

namespace moracle {

enum class UnicodeCategory : uint8_t {
  kNone,  ///< separators, controls, unassigned
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kP,
  kS
};

/// The category of the characters from `first` up to the next entry.
struct UnicodeStart {
  uint32_t first;
  UnicodeCategory category;
};
struct UnicodeRange {
  uint32_t first, last;
};

/// Every character, in order.
const std::vector<UnicodeStart>& unicode_categories();
/// The script of Chinese characters.
const std::vector<UnicodeRange>& unicode_han();
/// The characters of the pre-tokenizers Punctuation and Digits. Their tables in the tokenizers
/// library are of other versions of Unicode.
const std::vector<UnicodeRange>& punctuation_step();
const std::vector<UnicodeRange>& digits_step();

}  // namespace moracle
