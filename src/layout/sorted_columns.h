// Act-order for kernels that expect columns ordered by group.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// Sorts the columns by group, stably. Column j of the result is column order[j] of `slice`; the
/// result's `group_index` [k] holds this order. Scales, zero points and minimums do not move.
/// Errors: a group with more or fewer columns than key.group (only the last group may be shorter),
/// because then no order puts group g at columns [g * cols, (g + 1) * cols).
Result<CanonicalMatrix> sort_columns(const CanonicalMatrix& slice);

}  // namespace moracle
