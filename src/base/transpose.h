// Transposes row-major matrices, one cache line at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace moracle {

/// Transposes columns [begin, end) of `from` [rows, cols] into rows [begin, end) of `to` [cols,
/// rows]. Applies `change` to each element. Both are row-major and need no alignment.
template <class Element, class Change>
void transpose(const std::byte* from, int64_t rows, int64_t cols, int64_t begin, int64_t end,
               Change change, std::byte* to) {
  constexpr int64_t kSize = sizeof(Element), kBlock = 64 / kSize;
  for (int64_t r = 0; r < rows; r += kBlock) {
    const int64_t height = std::min(kBlock, rows - r);
    for (int64_t c = begin; c < end; c += kBlock) {
      const int64_t width = std::min(kBlock, end - c);
      Element block[kBlock][kBlock];
      const bool whole = height == kBlock && width == kBlock;
      for (int64_t i = 0; i < height; ++i) {
        Element line[kBlock] = {};
        std::memcpy(line, from + ((r + i) * cols + c) * kSize, whole ? 64 : width * kSize);
        for (int64_t j = 0; j < kBlock; ++j) block[j][i] = change(line[j]);
      }
      for (int64_t j = 0; j < width; ++j)
        std::memcpy(to + ((c + j) * rows + r) * kSize, block[j], whole ? 64 : height * kSize);
    }
  }
}

}  // namespace moracle
