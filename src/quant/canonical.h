// Changes the shape of a canonical matrix without changing its values.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// Repeats the scales so that each matrix row has its own scale row (`key.group.rows` = 1).
void expand_scale_rows(CanonicalMatrix& matrix);

/// Reorders rows to 0, 2, 4, … then 1, 3, 5, …: from interleaved gate and up to gate, then up.
/// Scales must be per row. Biases are reordered too.
void deinterleave_rows(CanonicalMatrix& matrix);

/// A view of rows [first, first + count) of a float matrix, including biases.
CanonicalMatrix float_rows(const CanonicalMatrix& floats, int64_t first, int64_t count);

/// Appends `slice` below the first_row rows of `whole`. The storage of `whole` must have space for
/// the codes. Both have the same k and key. If scale blocks span rows, first_row must be at the end
/// of a block.
void stack_rows(CanonicalMatrix& whole, int64_t first_row, const CanonicalMatrix& slice);

}  // namespace moracle
