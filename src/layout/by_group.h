// Scales and zero points beside the panels that they belong to.
#pragma once

#include <cstring>
#include <vector>

#include "layout/layout.h"

namespace moracle {

/// Values [n or blocks of n, groups] of a piece whose rows are those from `first_row` on, to
/// [panel, group, lanes]: kRowStep rows make a panel, and there is one value for each of them, or
/// where lanes is 1 one for all. `convert` gives what is stored.
template <class Value, class Convert>
void pack_by_group(const std::vector<Value>& values, const CanonicalMatrix& piece,
                   int64_t first_row, int64_t groups, int64_t lanes, Convert convert,
                   std::byte* out) {
  using Stored = decltype(convert(Value{}));
  constexpr auto kSize = static_cast<int64_t>(sizeof(Stored));
  if (values.empty()) return;
  const int64_t block = piece.key.group.rows == GroupShape::kAll ? piece.n : piece.key.group.rows;
  for (int64_t r = 0; r < piece.n; r += lanes == 1 ? kRowStep : 1) {
    const Value* const row = values.data() + (block == 1 ? r : r / block) * groups;
    const int64_t lane = lanes == 1 ? 0 : (first_row + r) % kRowStep;
    std::byte* const to = out + ((first_row + r) / kRowStep * groups * lanes + lane) * kSize;
    for (int64_t g = 0; g < groups; ++g) {
      const Stored stored = convert(row[g]);
      std::memcpy(to + g * lanes * kSize, &stored, sizeof stored);
    }
  }
}

}  // namespace moracle
