// Panels of 16 rows of the weight matrix. The 16 rows of a column lie side by side, so one vector
// load serves 16 outputs. Element (r, c) of a panel is at:
//
//   float types   c·16 + r                    16 rows of column c, then of column c + 1
//   int8, 4 bits  (c/2)·32 + 2·r + c%2        pairs of columns, for multiply-add of pairs;
//                                             4-bit pairs share a byte, even column low
//   scales        g·16 + r per panel          f32; one per row, even if rows share a scale
//   zero points   g·16 + r per panel          i8
//
// Rows are padded to 16 and integer columns to 2. Codes 0 and scales 0 in the padding add nothing.
#pragma once

#include "layout/groups.h"
#include "layout/layout.h"

namespace moracle::panel16 {

inline constexpr int64_t kRows = 16;

constexpr int64_t interleave(DType dtype) {
  return dtype == DType::kI4 || dtype == DType::kF4E2M1 || dtype == DType::kI8 ? 2 : 1;
}
inline int64_t padded_cols(const MatrixShape& shape) {
  const int64_t i = interleave(shape.key.dtype);
  return (shape.k + i - 1) / i * i;
}
inline int64_t num_panels(const MatrixShape& shape) {
  return (shape.n + kRows - 1) / kRows;
}
inline int64_t panel_bytes(const MatrixShape& shape) {
  return padded_cols(shape) * kRows * bits(shape.key.dtype) / 8;
}
using moracle::group_cols;
using moracle::num_groups;

/// Bit offset of code (r, c) in the codes of a matrix with k columns, for host and device code.
constexpr int64_t code_bit(DType dtype, int code_bits, int64_t k, int64_t r, int64_t c) {
  const int64_t i = interleave(dtype), panel = (k + i - 1) / i * i * kRows;
  const int64_t element = (c / i) * kRows * i + (r % kRows) * i + c % i;
  return ((r / kRows) * panel + element) * code_bits;
}

}  // namespace moracle::panel16
