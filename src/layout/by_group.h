// Scales and zero points beside the panels that they belong to.
#pragma once

#include <cstring>
#include <vector>

#include "layout/layout.h"

namespace moracle {

/// Values [n or blocks of n, groups] to [panel, group, lanes]: `rows` of the matrix make a panel,
/// and there is one value for each of them, or where lanes is 1 one for all. `convert` gives what
/// is stored.
template <class Value, class Convert>
void pack_by_group(const std::vector<Value>& values, const CanonicalMatrix& m, int64_t groups,
                   int64_t rows, int64_t lanes, Convert convert, std::byte* out) {
  using Stored = decltype(convert(Value{}));
  const int64_t block = m.key.group.rows == GroupShape::kAll ? m.n : m.key.group.rows;
  for (int64_t r = 0; r < (values.empty() ? 0 : m.n); ++r) {
    if (lanes == 1 && r % rows != 0) continue;
    for (int64_t g = 0; g < groups; ++g) {
      const Stored stored = convert(values[r / block * groups + g]);
      const int64_t at = ((r / rows) * groups + g) * lanes + (lanes == 1 ? 0 : r % rows);
      std::memcpy(out + at * static_cast<int64_t>(sizeof stored), &stored, sizeof stored);
    }
  }
}

}  // namespace moracle
