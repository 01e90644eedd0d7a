// Compares top-k of long rows on every device with the definition.
#include "kernels/ops/top_k_cases.h"

#include "kernels/ops/device_ops.h"
#include "kernels/top_k_key.h"

namespace moracle::top_k_test {
namespace {

using ::testing::HasSubstr;

class TopK : public testing::DeviceOpsTest {};

TEST_P(TopK, MatchesDefinition) {
  for (const testing::TopKCase& c : testing::kTopKCases) {
    const std::vector<float> numbers = testing::numbers_for(c);
    int32_t* const ids = upload(std::vector<int32_t>(c.rows * c.k, -1));
    float* const values = upload(std::vector<float>(c.rows * c.k));
    expect_done(ops().find_top_k(matrix(numbers, c.rows, c.cols, DType::kF32), c.k, ids, values,
                                 allocate(top_k_scratch_bytes(c.rows, c.cols, c.k, dtype())), {}));
    testing::expect_top_k(c, numbers, download(ids, c.rows * c.k), download(values, c.rows * c.k));
  }
}

TEST_P(TopK, RejectsKLargerThanRow) {
  int32_t* const ids = upload(std::vector<int32_t>(1000));
  float* const values = upload(std::vector<float>(1000));
  for (auto [cols, k] : {std::pair{10, 11}, {10, 0}, {1000, 257}}) {
    const Status refused =
        ops().find_top_k(blank(1, cols, DType::kF32), k, ids, values, nullptr, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(refused.error().to_string(), HasSubstr(std::to_string(k)));
  }
}

MORACLE_ON_EVERY_DEVICE(TopK);

TEST(TopKKey, HoldsValueAndIndex) {
  for (const float value : {0.0f, 1.0f, -1.0f, 3e38f, -3e38f, 1e-45f, -1e-45f}) {
    EXPECT_EQ(value_of_key(top_k_key(value, 151'935)), value);
    EXPECT_EQ(index_of_key(top_k_key(value, 151'935)), 151'935);
    EXPECT_GT(top_k_key(value, 7), top_k_key(value, 8));
    EXPECT_GT(top_k_key(value, 0), kNoKey);
  }
  const uint64_t nan = top_k_key(std::nanf(""), 3);
  EXPECT_TRUE(std::isnan(value_of_key(nan)));
  EXPECT_EQ(index_of_key(nan), 3);
  EXPECT_GT(nan, top_k_key(std::numeric_limits<float>::infinity(), 0));
}

}  // namespace
}  // namespace moracle::top_k_test
