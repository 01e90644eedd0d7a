// Packs rows of codes into panels of 16 rows, with the same few bytes of each row side by side.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "moracle/quant.h"

namespace moracle {

/// Packs rows [begin, end) of a slice, word by word. Both limits are panel boundaries, or end is
/// the last row. Word w of panel row r goes to index w · 16 + r, converted by `change`. `words` is
/// the row length including padding. Missing rows and bytes are 0 before `change`. Processes 64
/// bytes of each row at a time, so each cache line is read and written once.
template <class Word, class Change>
void pack_panels(const CanonicalMatrix& slice, int64_t begin, int64_t end, int64_t words,
                 Change change, std::byte* out) {
  static_assert(std::is_unsigned_v<Word>);
  constexpr int64_t kRows = 16, kBytes = 64, kSize = sizeof(Word), kWords = kBytes / kSize;
  const int64_t row_bytes = slice.row_bytes();
  const bool half_byte = slice.k * bits(slice.key.dtype) % 8 != 0;
  for (int64_t first = begin; first < end; first += kRows, out += words * kRows * kSize) {
    const int64_t rows = std::min(kRows, end - first);
    const std::byte* const from = slice.codes.data() + first * row_bytes;
    for (int64_t at = 0; at < words; at += kWords) {
      const int64_t count = std::min(kWords, words - at);
      const int64_t bytes = std::clamp<int64_t>(row_bytes - at * kSize, 0, kBytes);
      std::byte* const to = out + at * kRows * kSize;
      for (int64_t r = 0; r < kRows; ++r) {
        Word row[kWords] = {};
        if (r < rows && bytes == kBytes)
          std::memcpy(row, from + r * row_bytes + at * kSize, kBytes);
        else if (r < rows && bytes > 0)
          std::memcpy(row, from + r * row_bytes + at * kSize, bytes);
        if (half_byte && r < rows && bytes > 0 && at * kSize + bytes == row_bytes)
          row[(bytes - 1) / kSize] &= static_cast<Word>(
              static_cast<Word>(~Word{0}) >> (8 * (kSize - 1 - (bytes - 1) % kSize) + 4));
        for (Word& word : row) word = change(word);
        if (count == kWords) {
          for (int64_t w = 0; w < kWords; ++w)
            std::memcpy(to + (w * kRows + r) * kSize, row + w, kSize);
        } else {
          for (int64_t w = 0; w < count; ++w)
            std::memcpy(to + (w * kRows + r) * kSize, row + w, kSize);
        }
      }
    }
  }
}

}  // namespace moracle
