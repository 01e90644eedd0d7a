// Exact changes of a canonical matrix's shape.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// One scale row per matrix row (`key.group.rows` = 1): the same numbers, repeated.
void expand_scale_rows(CanonicalMatrix& matrix);

/// Rows 0, 2, 4, … then 1, 3, 5, …: from gate and up interleaved to gate, then up. Scales must be
/// per row. Biases go along.
void deinterleave_rows(CanonicalMatrix& matrix);

/// A view of rows [first, first + count) of floats, biases included.
CanonicalMatrix float_rows(const CanonicalMatrix& floats, int64_t first, int64_t count);

/// Puts `piece` below the first_row rows that `whole` has; codes go into its storage, which has
/// room for them. Both have the same k and key; scales, where blocks have rows, end with a block.
void stack_rows(CanonicalMatrix& whole, int64_t first_row, const CanonicalMatrix& piece);

}  // namespace moracle
