// Groups along K in layouts, for host and device code.
#pragma once

#include "moracle/layer.h"

namespace moracle {

/// Columns per scale, and groups per row.
constexpr int64_t group_cols(const MatrixShape& shape) {
  return shape.key.group.cols == GroupShape::kAll ? shape.k : shape.key.group.cols;
}
constexpr int64_t num_groups(const MatrixShape& shape) {
  const int64_t cols = group_cols(shape);
  return cols == 0 ? 0 : (shape.k + cols - 1) / cols;
}
/// Panels fold zero points into the minimums: then they store none.
constexpr bool panels_have_zero_points(const MatrixShape& shape) {
  return shape.key.quantized() && !shape.key.symmetric && !shape.key.minimums;
}
constexpr bool scale_is_exponent(const MatrixShape& shape) {
  return shape.key.scale_dtype == DType::kF8E8M0;
}

}  // namespace moracle
