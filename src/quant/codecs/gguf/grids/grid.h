// Unpacks a grid: the code book of an I-quant.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moracle {

/// A row of a grid (Line) is stored in 16 bits: 8 entries of 2 bits or 4 entries of 4 bits, from
/// the low bits on. Each entry is an index in `values`. Entry j of the result is byte j of `Line`.
template <class Line, size_t lines, size_t count>
constexpr std::array<Line, lines> unpack_grid(const uint16_t (&packed)[lines],
                                              const int8_t (&values)[count]) {
  constexpr size_t kWidth = 16 / sizeof(Line);
  static_assert(count <= size_t{1} << kWidth);
  std::array<Line, lines> grid{};
  for (size_t i = 0; i < lines; ++i) {
    for (size_t j = 0; j < sizeof(Line); ++j) {
      const size_t index = static_cast<size_t>(packed[i] >> (kWidth * j)) & ((1u << kWidth) - 1);
      grid[i] |= static_cast<Line>(static_cast<uint8_t>(values[index])) << (8 * j);
    }
  }
  return grid;
}

}  // namespace moracle
