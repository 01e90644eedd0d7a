// A rank's share of a described matrix: some of its rows or columns. Reading keeps only these. And
// columns in another order.
#pragma once

#include <vector>

#include "moracle/checkpoint.h"

namespace moracle {

struct RowRange {
  int64_t begin = 0, end = 0;
};

struct MatrixShare {
  /// The matrix with another key of the same values, which layouts then store.
  static void set_key(DescribedMatrix& matrix, const QuantKey& key) { matrix.shape_.key = key; }

  /// The same values with scales of blocks that divide `rows` rows, so that every such share of the
  /// rows is whole blocks.
  static DescribedMatrix divide_blocks(DescribedMatrix&& matrix, int64_t rows);

  /// The rows of all ranges, one after another, of each expert. Errors (kUnsupported): a range that
  /// begins or ends within a block of scales.
  static Result<DescribedMatrix> rows(DescribedMatrix&& matrix,
                                      const std::vector<RowRange>& ranges);
  /// Columns [begin, end) of each expert. `keeps_bias`: else biases become 0, so that the sum of
  /// all shares has them once. Errors (kUnsupported): likewise for groups; act-order.
  static Result<DescribedMatrix> columns(DescribedMatrix&& matrix, int64_t begin, int64_t end,
                                         bool keeps_bias);
  /// Columns that are stored interleaved: of runs of `size` columns in the order that the result
  /// has, the file holds first every (runs / `strides`)-th one, then their successors. Errors
  /// (kUnsupported): a run that is not whole groups; act-order.
  static Result<DescribedMatrix> interleaved_columns(DescribedMatrix&& matrix, int64_t size,
                                                     int64_t strides);
};

}  // namespace moracle
