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

/// True if rows have a factor, such that each of their scales is that factor times a number of few
/// bits: NVFP4, whose scales are e4m3 times one number. Kernels find it when weights arrive.
constexpr bool has_row_factors(const MatrixShape& shape) {
  return shape.key == kNvfp4Static && num_groups(shape) > 1;
}

}  // namespace moracle::mma16
