// Layout mma16 (mma16_block.h), with the groups of columns that share scales.
#pragma once

#include "layout/groups.h"
#include "layout/layout.h"
#include "layout/mma16_block.h"

namespace moracle::mma16 {

using moracle::group_cols;
using moracle::num_groups;
using moracle::scale_is_exponent;

/// Columns of half a block.
inline constexpr int kHalfCols = kCols / 2;
/// True if groups are an odd number of half blocks: then some of them end within a block.
constexpr bool groups_in_halves(const MatrixShape& shape) {
  return num_groups(shape) > 1 && group_cols(shape) % kCols == kHalfCols;
}

/// True if scales are e4m3 numbers, and rows have a factor: NVFP4 (quant/e4m3_scales.h).
constexpr bool has_row_factors(const MatrixShape& shape) {
  return shape.key == kNvfp4Static && num_groups(shape) > 1;
}
/// Bytes of a scale: of an e4m3 number or an exponent, or of an f32 number.
constexpr int scale_bytes(const MatrixShape& shape) {
  return scale_is_exponent(shape) || has_row_factors(shape) ? 1 : 4;
}

}  // namespace moracle::mma16
