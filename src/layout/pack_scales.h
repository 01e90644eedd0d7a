// Packs scales, zero points and minimums by panel.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "layout/layout.h"

namespace moracle {

/// Packs values [n or blocks of n, groups] of a slice, which starts at row `first_row`, to [panel,
/// group, lanes]. A panel has kRowStep rows. Each row has its own value, or with lanes = 1 one
/// value covers the panel. `convert` returns the stored value.
template <class Value, class Convert>
void pack_by_group(const std::vector<Value>& values, const CanonicalMatrix& slice,
                   int64_t first_row, int64_t groups, int64_t lanes, Convert convert,
                   std::byte* out) {
  using Stored = decltype(convert(Value{}));
  constexpr auto kSize = static_cast<int64_t>(sizeof(Stored));
  if (values.empty()) return;
  const int64_t block = slice.key.group.rows == GroupShape::kAll ? slice.n : slice.key.group.rows;
  for (int64_t r = 0; r < slice.n; r += lanes == 1 ? kRowStep : 1) {
    const Value* const row = values.data() + (block == 1 ? r : r / block) * groups;
    const int64_t lane = lanes == 1 ? 0 : (first_row + r) % kRowStep;
    std::byte* const to = out + ((first_row + r) / kRowStep * groups * lanes + lane) * kSize;
    for (int64_t g = 0; g < groups; ++g) {
      const Stored stored = convert(row[g]);
      std::memcpy(to + g * lanes * kSize, &stored, sizeof stored);
    }
  }
}

/// Packs scales; power-of-two scales may be stored as exponents.
inline void pack_scales(const CanonicalMatrix& slice, int64_t first_row, int64_t groups,
                        int64_t lanes, bool as_exponents, std::byte* out) {
  const auto exponent = [](float scale) {
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
  };
  const auto same = [](float scale) { return scale; };
  if (as_exponents)
    pack_by_group(slice.scales, slice, first_row, groups, lanes, exponent, out);
  else
    pack_by_group(slice.scales, slice, first_row, groups, lanes, same, out);
}
/// Packs zero points, one per row and group.
inline void pack_zero_points(const CanonicalMatrix& slice, int64_t first_row, int64_t groups,
                             std::byte* out) {
  const auto same = [](int8_t zero) { return zero; };
  pack_by_group(slice.zero_points, slice, first_row, groups, kRowStep, same, out);
}
/// Packs what kernels subtract from code · scale, one per row and group: the minimum, and the zero
/// point times the scale, rounded once to f32.
inline void pack_minimums(const CanonicalMatrix& slice, int64_t first_row, int64_t groups,
                          std::byte* out) {
  const auto same = [](float minimum) { return minimum; };
  std::vector<float> folded = slice.minimums;
  for (size_t i = 0; i < slice.zero_points.size(); ++i)
    folded[i] = std::fma(static_cast<float>(slice.zero_points[i]), slice.scales[i], folded[i]);
  pack_by_group(folded, slice, first_row, groups, kRowStep, same, out);
}

}  // namespace moracle
