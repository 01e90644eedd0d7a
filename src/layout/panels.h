// Packs rows of codes into panels of 16 rows, with the same few bytes of each row side by side.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "moracle/quant.h"

namespace moracle {

/// Packs rows [begin, end) of a piece, unit by unit. Both limits are panel boundaries, or end is
/// the last row. Unit u of panel row r goes to place u · 16 + r, converted by `change`. `units` is
/// the row length including padding. Missing rows and bytes are 0 before `change`. Processes 64
/// bytes of each row at a time, so each cache line is read and written once.
template <class Unit, class Change>
void pack_panels(const CanonicalMatrix& piece, int64_t begin, int64_t end, int64_t units,
                 Change change, std::byte* out) {
  static_assert(std::is_unsigned_v<Unit>);
  constexpr int64_t kRows = 16, kBytes = 64, kSize = sizeof(Unit), kUnits = kBytes / kSize;
  const int64_t row_bytes = piece.row_bytes();
  const bool half_byte = piece.k * bits(piece.key.dtype) % 8 != 0;
  for (int64_t first = begin; first < end; first += kRows, out += units * kRows * kSize) {
    const int64_t rows = std::min(kRows, end - first);
    const std::byte* const from = piece.codes.data() + first * row_bytes;
    for (int64_t at = 0; at < units; at += kUnits) {
      const int64_t count = std::min(kUnits, units - at);
      const int64_t bytes = std::clamp<int64_t>(row_bytes - at * kSize, 0, kBytes);
      std::byte* const to = out + at * kRows * kSize;
      for (int64_t r = 0; r < kRows; ++r) {
        Unit line[kUnits] = {};
        if (r < rows && bytes == kBytes)
          std::memcpy(line, from + r * row_bytes + at * kSize, kBytes);
        else if (r < rows && bytes > 0)
          std::memcpy(line, from + r * row_bytes + at * kSize, bytes);
        if (half_byte && r < rows && bytes > 0 && at * kSize + bytes == row_bytes)
          line[(bytes - 1) / kSize] &= static_cast<Unit>(
              static_cast<Unit>(~Unit{0}) >> (8 * (kSize - 1 - (bytes - 1) % kSize) + 4));
        for (Unit& unit : line) unit = change(unit);
        if (count == kUnits) {
          for (int64_t u = 0; u < kUnits; ++u)
            std::memcpy(to + (u * kRows + r) * kSize, line + u, kSize);
        } else {
          for (int64_t u = 0; u < count; ++u)
            std::memcpy(to + (u * kRows + r) * kSize, line + u, kSize);
        }
      }
    }
  }
}

}  // namespace moracle
