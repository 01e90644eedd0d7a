// sorted() with Python's order, which can fail on mixed types.
#pragma once

#include <vector>

#include "text/jinja/values/value.h"

namespace moracle::jinja {

/// Returns the positions of `keys` in ascending (or descending) order; equal keys keep their order.
/// Errors: keys without an order among them.
Result<std::vector<size_t>> sorted_indices(Budget& budget, const Values& keys, bool reverse);

}  // namespace moracle::jinja
