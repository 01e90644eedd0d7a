// Row blocks of 64 bytes for instructions that multiply four bytes at a time. A row block holds 4
// bytes of columns for each of 16 weight rows. One row block times one broadcast of 4 activation
// bytes serves 16 outputs. Sixteen consecutive row blocks are one AMX tile. In a panel of 16 rows,
// element (r, c) begins at
//
//   8 bits     (c/4)·64 + 4·r + c%4          four columns of each row in a row block
//   16 bits    (c/2)·64 + 4·r + 2·(c%2)      two columns
//   f32         c·64 + 4·r                   one column
//   4 bits     (c/8)·64 + 4·r + c%4          eight columns: c%8 < 4 in the low half of the byte
//   code sets  numbers of 6, 5 or 4 bits (code_set.h) in units of 16, 32 or 8 columns: row blocks
//   of
//              their low 4 bits, as above, then one of the others: bits w·b to w·b + w - 1 of byte
//              j belong to column 4·b + j, where w is 2 or 1
//   scales     (g·16 + r)·4 per panel        f32, f16, or one exponent byte for power-of-two
//   scales;
//                                            one per panel if its 16 rows share the scale
//   zero points g·16 + r per panel           i8
//   minimums    (g·16 + r)·4 per panel       f32, minimum + zero point · scale, rounded once; then
//                                            there are no zero points
//   steps      i8 scales (QuantKey): for each panel f16 factors [factors][16], then i8 steps
//              [groups][16], of the scales and likewise of the minimums. Where codes have zero
//              points, each is kStepZeroPoint.
//
// Rows are padded to 16. Columns are padded to 16 row blocks of the dtype of the products. Padding
// has codes 0 and scales 0.
#pragma once

#include "layout/groups.h"
#include "layout/layout.h"
#include "quant/code_set.h"

namespace moracle::vnni16 {

inline constexpr int64_t kRows = 16;
inline constexpr int64_t kRowBlockBytes = 64;

/// Columns per row block.
inline int64_t block_cols(DType dtype) {
  return 32 / bits(dtype);
}
inline int64_t padded_cols(const MatrixShape& shape) {
  const int64_t to = bits(shape.key.dtype) <= 8 ? 64 : 16 * block_cols(shape.key.dtype);
  return (shape.k + to - 1) / to * to;
}
inline int64_t num_blocks(const MatrixShape& shape) {
  return padded_cols(shape) / block_cols(shape.key.dtype);
}
inline int64_t num_panels(const MatrixShape& shape) {
  return (shape.n + kRows - 1) / kRows;
}
/// Columns and row blocks that are packed together.
struct Unit {
  int64_t cols, blocks;
};
inline Unit unit_of(const MatrixShape& shape) {
  const CodeSet set = shape.key.codes;
  if (set == CodeSet::kAny) return {block_cols(shape.key.dtype), 1};
  return {code_unit(set), code_unit(set) * code_bits(set) / 32};
}
inline int64_t panel_bytes(const MatrixShape& shape) {
  const Unit unit = unit_of(shape);
  return padded_cols(shape) / unit.cols * unit.blocks * kRowBlockBytes;
}
using moracle::group_cols;
using moracle::num_groups;
using moracle::scale_is_exponent;
/// True if scales and minimums are steps, integers of 8 bits, times f16 factors.
inline bool scale_is_step(const MatrixShape& shape) {
  return shape.key.scale_dtype == DType::kI8;
}
inline int64_t num_factors(const MatrixShape& shape) {
  return (shape.k + kFactorCols - 1) / kFactorCols;
}
/// Bytes of a panel's factors, and of these and the steps.
inline int64_t factor_bytes(const MatrixShape& shape) {
  return num_factors(shape) * kRows * static_cast<int64_t>(sizeof(uint16_t));
}
inline int64_t step_bytes(const MatrixShape& shape) {
  return factor_bytes(shape) + num_groups(shape) * kRows;
}
/// Scales of one group in a panel: one per row, or one for all rows.
inline int64_t scale_lanes(const MatrixShape& shape) {
  return shape.key.group.rows > 0 && shape.key.group.rows % kRows == 0 ? 1 : kRows;
}
/// Bytes of a panel's scales.
inline int64_t scale_bytes(const MatrixShape& shape) {
  if (!shape.key.quantized()) return 0;
  if (scale_is_step(shape)) return step_bytes(shape);
  return num_groups(shape) * scale_lanes(shape) * bits(shape.key.scale_dtype) / 8;
}
/// Bytes of a panel's minimums.
inline int64_t minimum_bytes(const MatrixShape& shape) {
  if (!shape.key.minimums) return 0;
  if (scale_is_step(shape)) return step_bytes(shape);
  return num_groups(shape) * kRows * static_cast<int64_t>(sizeof(float));
}

}  // namespace moracle::vnni16
