// Cuts rows or columns out of a canonical matrix.
#pragma once

#include <functional>

#include "moracle/quant.h"

namespace moracle {

/// Rows [first, first + count). Both ends are boundaries of scale blocks, or the last row.
CanonicalMatrix cut_rows(CanonicalMatrix&& matrix, int64_t first, int64_t count);
/// The same values with scales of blocks of fewer rows, of which scale blocks have a whole number.
CanonicalMatrix divide_blocks(CanonicalMatrix&& matrix, int64_t rows);
/// The key of columns [first, first + count) of k: scales of kI8 become f32 where the cut divides
/// the columns of a factor.
QuantKey cut_key(QuantKey key, int64_t k, int64_t first, int64_t count);
/// Columns [first, first + count). Both ends are boundaries of bytes and of groups, or the last
/// column. The matrix has no group_index. Without `keeps_bias`, biases become 0.
CanonicalMatrix cut_columns(const CanonicalMatrix& matrix, int64_t first, int64_t count,
                            bool keeps_bias);
/// Columns in another order: run r of `size` columns is run `stored`(r) of the matrix. Runs are
/// whole bytes and whole groups. The key is cut_key of a run.
CanonicalMatrix reorder_columns(const CanonicalMatrix& matrix, int64_t size,
                                const std::function<int64_t(int64_t run)>& stored);

}  // namespace moracle
