// Rows for top-k tests, and the definition of the result.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace moracle::testing {

struct TopKCase {
  int64_t rows, cols, k;
};
/// Column counts: fewer than a block, exactly one block, one more; more tiles than one round can
/// merge.
inline constexpr TopKCase kTopKCases[] = {{1, 1, 1},        {3, 7, 7},      {2, 255, 1},
                                          {5, 256, 20},     {1, 2048, 256}, {4, 2049, 256},
                                          {70, 5000, 40},   {2, 151936, 1}, {3, 151936, 20},
                                          {2, 201088, 256}, {1, 40000, 255}};

/// Values of all kinds: every other row has few distinct values, some rows have infinities, zeros
/// of both signs and NaNs.
inline std::vector<float> numbers_for(const TopKCase& c) {
  std::mt19937 random(static_cast<uint32_t>(c.cols + c.k));
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> numbers(c.rows * c.cols);
  for (float& x : numbers) x = normal(random);
  for (int64_t r = 1; r < c.rows; r += 2)
    std::transform(&numbers[r * c.cols], &numbers[r * c.cols] + c.cols, &numbers[r * c.cols],
                   [](float x) { return std::round(x / 4); });
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const float odd[] = {inf, -inf, nan, -nan, -0.0f, 0.0f};
  for (size_t i = 0; i < numbers.size() / 50; ++i) numbers[random() % numbers.size()] = odd[i % 6];
  return numbers;
}

/// The sort order: larger first, the lower column first among equals, NaN before everything.
inline std::vector<int32_t> top_k_by_definition(const float* row, int64_t cols, int64_t k) {
  std::vector<int32_t> ids(cols);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [row](int32_t a, int32_t b) {
    if (std::isnan(row[a]) || std::isnan(row[b])) return std::isnan(row[a]) && !std::isnan(row[b]);
    return row[a] > row[b];
  });
  ids.resize(k);
  return ids;
}

inline void expect_top_k(const TopKCase& c, const std::vector<float>& numbers,
                         const std::vector<int32_t>& ids, const std::vector<float>& values) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* const row = &numbers[r * c.cols];
    const std::vector<int32_t> want = top_k_by_definition(row, c.cols, c.k);
    for (int64_t i = 0; i < c.k; ++i) {
      ASSERT_EQ(ids[r * c.k + i], want[i]) << c.cols << " columns, row " << r << ", " << i;
      const float value = values[r * c.k + i], own = row[want[i]];
      ASSERT_TRUE(value == own || (std::isnan(value) && std::isnan(own)));
    }
  }
}

}  // namespace moracle::testing
