// Exact changes of a canonical matrix's shape.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// One scale row per matrix row (`key.group.rows` = 1): the same numbers, repeated.
void expand_scale_rows(CanonicalMatrix& matrix);

/// Rows 0, 2, 4, … then 1, 3, 5, …: from gate and up interleaved to gate, then up. Scales must be
/// per row. Biases go along.
void deinterleave_rows(CanonicalMatrix& matrix);

}  // namespace moracle
