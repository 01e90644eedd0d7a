#pragma once

#include <cstring>
#include <vector>

#include "layout/layout.h"

namespace moracle {

inline constexpr size_t kSectionAlignment = 64;

/// Sections of the given sizes in bytes, one after another.
inline Sections lay_out(size_t codes, size_t scales, size_t zero_points, size_t minimums,
                        size_t group_index, size_t bias, size_t row_factors = 0) {
  auto up = [](size_t bytes) {
    return (bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
  };
  Sections s;
  s.scales = s.codes + up(codes);
  s.zero_points = s.scales + up(scales);
  s.minimums = s.zero_points + up(zero_points);
  s.group_index = s.minimums + up(minimums);
  s.bias = s.group_index + up(group_index);
  s.row_factors = s.bias + up(bias);
  s.bytes = s.row_factors + up(row_factors);
  return s;
}

/// Copies values unchanged.
template <class Value>
void put(const std::vector<Value>& values, std::byte* out) {
  if (!values.empty()) std::memcpy(out, values.data(), values.size() * sizeof(Value));
}

}  // namespace moracle
