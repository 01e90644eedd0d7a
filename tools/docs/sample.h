// A small matrix of one type, stored by the layout's index function.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "layout/layout.h"

namespace moracle::docs {

struct Code {
  int64_t row, col;
  bool operator==(const Code&) const = default;
};

struct Sample {
  // More than one panel of 16 rows, so that padding shows.
  static constexpr int64_t kRows = 20, kCols = 16;

  const Layout& layout;
  MatrixShape shape;
  int64_t size;                   ///< bits of a code
  std::map<int64_t, Code> codes;  ///< by index in memory, counted in codes

  Sample(const Layout& of, DType type)
      : layout(of), shape{kRows, kCols, {type, kPerRow}}, size(bits(type)) {
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kCols; ++c) codes[place(r, c)] = {r, c};
    }
  }
  int64_t place(int64_t r, int64_t c) const { return layout.code_bit(shape, r, c) / size; }
  /// The index after the last code.
  int64_t end() const { return codes.rbegin()->first + 1; }
  bool lies_like(const Sample& other) const { return size == other.size && codes == other.codes; }
};

/// The sample as SVG: above, the matrix with each code's place in memory; below, the first lines of
/// memory with each code's row and column.
std::string draw(const Sample& sample, std::string_view title);

}  // namespace moracle::docs
