// Sizes in layout columns16, for its packer and its kernel.
#pragma once

#include <algorithm>

#include "layout/groups.h"
#include "layout/layout.h"

namespace moracle::columns16 {

constexpr int64_t padded_rows(const MatrixShape& shape) {
  return (shape.n + kRowStep - 1) / kRowStep * kRowStep;
}
constexpr int64_t padded_cols(const MatrixShape& shape) {
  return (shape.k + 31) / 32 * 32;
}
/// Rows that share a scale.
constexpr int64_t block_rows(const MatrixShape& shape) {
  const int64_t rows = shape.key.group.rows;
  return std::max<int64_t>(rows == GroupShape::kAll ? shape.n : rows, 1);
}
/// Scales of one group of columns.
constexpr int64_t scale_rows(const MatrixShape& shape) {
  const int64_t block = block_rows(shape);
  return block == 1 ? padded_rows(shape) : (shape.n + block - 1) / block;
}

}  // namespace moracle::columns16
