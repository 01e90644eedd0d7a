// Compares top-k of long rows on the CPU with the definition.
#include "kernels/top_k_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cpu_ops_test.h"
#include "kernels/top_k_key.h"

namespace moracle::top_k_test {
namespace {

using ::testing::HasSubstr;

class TopKTest : public CpuOpsTest {};

TEST_P(TopKTest, MatchesDefinition) {
  for (const testing::TopKCase& c : testing::kTopKCases) {
    std::vector<float> numbers = testing::numbers_for(c);
    std::vector<int32_t> ids(c.rows * c.k, -1);
    std::vector<float> values(ids.size());
    ASSERT_TRUE(ops_.find_top_k(Matrix::f32(numbers.data(), c.rows, c.cols), c.k, ids.data(),
                                values.data(), nullptr, {}));
    testing::expect_top_k(c, numbers, ids, values);
  }
}

TEST_P(TopKTest, RejectsKLargerThanRow) {
  std::vector<float> numbers(1000), values(1000);
  std::vector<int32_t> ids(1000);
  for (auto [cols, k] : {std::pair{10, 11}, {10, 0}, {1000, 257}}) {
    const Status refused = ops_.find_top_k(Matrix::f32(numbers.data(), 1, cols), k, ids.data(),
                                           values.data(), nullptr, {});
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().to_string(), HasSubstr(std::to_string(k)));
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, TopKTest, ::testing::Values(1, 3));

TEST(TopKKey, HoldsValueAndIndex) {
  for (const float value : {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-45f, -1e-45f}) {
    EXPECT_EQ(value_of_key(top_k_key(value, 151'935)), value);
    EXPECT_EQ(place_of_key(top_k_key(value, 151'935)), 151'935);
    EXPECT_GT(top_k_key(value, 7), top_k_key(value, 8));
    EXPECT_GT(top_k_key(value, 0), kNoKey);
  }
  const uint64_t nan = top_k_key(std::nanf(""), 3);
  EXPECT_TRUE(std::isnan(value_of_key(nan)));
  EXPECT_EQ(place_of_key(nan), 3);
  EXPECT_GT(nan, top_k_key(std::numeric_limits<float>::infinity(), 0));
}

}  // namespace
}  // namespace moracle::top_k_test
