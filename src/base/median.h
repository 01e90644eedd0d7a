#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moracle {

/// The median of `values`; the upper one if their number is even. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace moracle
