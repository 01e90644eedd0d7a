// Parts of a canonical matrix, with the same values.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// Rows [first, first + count), which begin and end at blocks of scales.
CanonicalMatrix cut_rows(CanonicalMatrix&& matrix, int64_t first, int64_t count);
/// Columns [first, first + count), which begin at a byte and at a group, and end at one or at the
/// last column. The matrix has no group_index. `keeps_bias`: else biases become 0.
CanonicalMatrix cut_columns(const CanonicalMatrix& matrix, int64_t first, int64_t count,
                            bool keeps_bias);

}  // namespace moracle
