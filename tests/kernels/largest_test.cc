// The largest of long rows, on the CPU, against the definition.
#include "kernels/largest_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu_ops_test.h"
#include "kernels/largest_key.h"

namespace moracle::largest_test {
namespace {

using ::testing::HasSubstr;

class LargestTest : public CpuOpsTest {};

TEST_P(LargestTest, AreThoseOfTheDefinition) {
  for (const testing::LargestCase& c : testing::kLargestCases) {
    std::vector<float> numbers = testing::numbers_for(c);
    std::vector<int32_t> ids(c.rows * c.k, -1);
    std::vector<float> values(ids.size());
    ASSERT_TRUE(ops_.find_largest(Matrix::f32(numbers.data(), c.rows, c.cols), c.k, ids.data(),
                                  values.data(), nullptr, {}));
    testing::expect_largest(c, numbers, ids, values);
  }
}

TEST_P(LargestTest, RefuseMoreThanThereAre) {
  std::vector<float> numbers(1000), values(1000);
  std::vector<int32_t> ids(1000);
  for (auto [cols, k] : {std::pair{10, 11}, {10, 0}, {1000, 257}}) {
    const Status refused = ops_.find_largest(Matrix::f32(numbers.data(), 1, cols), k, ids.data(),
                                             values.data(), nullptr, {});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().to_string(), HasSubstr(std::to_string(k)));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, LargestTest, ::testing::Values(1, 3));

TEST(LargestKey, HasTheValueAndThePlace) {
  for (const float value : {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-45f, -1e-45f}) {
    EXPECT_EQ(value_of_key(largest_key(value, 151'935)), value);
    EXPECT_EQ(place_of_key(largest_key(value, 151'935)), 151'935);
    EXPECT_GT(largest_key(value, 7), largest_key(value, 8));
    EXPECT_GT(largest_key(value, 0), kNoKey);
  }
  const uint64_t nan = largest_key(std::nanf(""), 3);
  EXPECT_TRUE(std::isnan(value_of_key(nan)));
  EXPECT_EQ(place_of_key(nan), 3);
  EXPECT_GT(nan, largest_key(std::numeric_limits<float>::infinity(), 0));
}

}  // namespace
}  // namespace moracle::largest_test
