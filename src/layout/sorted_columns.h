// Act-order for kernels whose columns lie group after group.
#pragma once

#include "moracle/quant.h"

namespace moracle {

/// The same rows with their columns sorted by group, stably: column j of the result is column
/// order[j] of `piece`, and `group_index` of the result holds that order, [k]. Scales and zero
/// points stay where they are. Errors: a group with more or fewer columns than key.group says (only
/// the last may be shorter), because no order puts group g at columns [g * cols, (g + 1) * cols).
Result<CanonicalMatrix> sort_columns(const CanonicalMatrix& piece);

}  // namespace moracle
