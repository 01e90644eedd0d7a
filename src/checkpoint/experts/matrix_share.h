// A rank's share of a described matrix: some of its rows or columns. Reading keeps only these.
#pragma once

#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

struct RowRange {
  int64_t begin = 0, end = 0;
};

struct MatrixShare {
  /// The rows of all ranges, one after another, of each expert. Errors (kUnsupported): a range that
  /// begins or ends within a block of scales.
  static Result<DescribedMatrix> rows(DescribedMatrix&& matrix,
                                      const std::vector<RowRange>& ranges);
  /// Columns [begin, end) of each expert. `keeps_bias`: else biases become 0, so that the sum of
  /// all shares has them once. Errors (kUnsupported): likewise for groups; act-order.
  static Result<DescribedMatrix> columns(DescribedMatrix&& matrix, int64_t begin, int64_t end,
                                         bool keeps_bias);
};

}  // namespace moracle
