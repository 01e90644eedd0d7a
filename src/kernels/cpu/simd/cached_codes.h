// The order of int8 keys and values of one head in a page of the cache. Both orders let integer
// products run without rearranging codes: a lane of a vector multiplies two neighbouring codes.
#pragma once

#include <cstdint>

namespace moracle::cpu {

/// Positions that are adjacent in the order of keys.
inline constexpr int64_t kKeyLanes = 16;

/// Keys: [position / 16][column / 2][position % 16][column % 2]. A lane is a position.
constexpr int64_t key_code(int64_t position, int64_t column, int64_t columns) {
  return position / kKeyLanes * kKeyLanes * columns + column / 2 * 2 * kKeyLanes +
         position % kKeyLanes * 2 + column % 2;
}
/// Values: [position / 2][column][position % 2]. A lane is a column.
constexpr int64_t value_code(int64_t position, int64_t column, int64_t columns) {
  return position / 2 * 2 * columns + column * 2 + position % 2;
}

}  // namespace moracle::cpu
