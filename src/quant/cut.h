// Cuts rows or columns out of a canonical matrix.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// Rows [first, first + count). Both ends are boundaries of scale blocks, or the last row.
CanonicalMatrix cut_rows(CanonicalMatrix&& matrix, int64_t first, int64_t count);
/// The key of columns [first, first + count) of k: scales of kI8 become f32 where the cut divides
/// the columns of a factor.
QuantKey cut_key(QuantKey key, int64_t k, int64_t first, int64_t count);
/// Columns [first, first + count). Both ends are boundaries of bytes and of groups, or the last
/// column. The matrix has no group_index. Without `keeps_bias`, biases become 0.
CanonicalMatrix cut_columns(const CanonicalMatrix& matrix, int64_t first, int64_t count,
                            bool keeps_bias);

}  // namespace moracle
