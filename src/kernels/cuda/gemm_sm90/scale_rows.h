// Rows of activation scales by group, [group][row], which TMA copies from multiples of 16 bytes.
#pragma once

#include <cstdint>

namespace moracle::cuda {

/// Returns the row of the scale of row `row` of expert `expert`. Scales of an expert begin at a
/// multiple of four, so `row` lies a multiple of four behind the expert's first row.
constexpr int scale_row(int row, int expert) {
  return row / 4 * 4 + 4 * expert;
}
/// Returns how many rows scales of `rows` rows of `experts` experts need.
constexpr int64_t scale_rows(int64_t rows, int64_t experts) {
  return (rows + 3) / 4 * 4 + 4 * experts;
}

}  // namespace moracle::cuda
