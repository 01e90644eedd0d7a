// Scales of NVFP4: e4m3 numbers times a factor of their row, found again from their products.
#include "quant/e4m3_scales.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/threads/thread_pool.h"

namespace moracle::e4m3_scales_test {
namespace {

using ::testing::HasSubstr;

RowFactor factor_of(const std::vector<float>& scales) {
  return row_factor(static_cast<int64_t>(scales.size()), [&](int64_t g) { return scales[g]; });
}

void expect_products(const std::vector<float>& scales) {
  const RowFactor row = factor_of(scales);
  EXPECT_TRUE(row.exact);
  for (const float scale : scales) {
    const float product = e4m3_to_float(e4m3_scale(scale, row.factor)) * row.factor;
    EXPECT_NEAR(product, scale, std::abs(scale) * 0x1p-20f);
  }
}

TEST(E4m3Scales, AreFoundFromProductsWithAnyNumber) {
  std::mt19937 engine(7);
  std::uniform_int_distribution<int> codes(0, 0x7e);
  std::uniform_real_distribution<float> exponents(-60, 20);
  for (int row = 0; row < 2000; ++row) {
    const float number = std::exp2(exponents(engine));
    const int most = codes(engine);  // rows of small scales, too, down to subnormal numbers
    std::vector<float> times, through;
    for (int g = 0; g < 64; ++g) {
      const float scale = e4m3_to_float(static_cast<uint8_t>(codes(engine) % (most + 1)));
      times.push_back(scale * number), through.push_back(scale / number);
    }
    expect_products(times);
    expect_products(through);
  }
}

TEST(E4m3Scales, HoldEachNumberAsLargest) {
  for (int most = 1; most <= 0x7e; ++most) {
    std::vector<float> scales;
    for (int code = 0; code <= most; ++code)
      scales.push_back(e4m3_to_float(static_cast<uint8_t>(code)) * 0.7133f);
    expect_products(scales);
    for (float& scale : scales) scale = -scale;
    expect_products(scales);
  }
}

TEST(E4m3Scales, OfZerosAndOfNumbersThatAreNotFinite) {
  EXPECT_EQ(factor_of({0, 0, 0}).factor, 0);
  EXPECT_TRUE(factor_of({}).exact);
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  const RowFactor row = factor_of({3, nan, infinity, 5});
  EXPECT_TRUE(row.exact);
  EXPECT_EQ(e4m3_to_float(e4m3_scale(3, row.factor)) * row.factor, 3);
  EXPECT_EQ(e4m3_scale(nan, row.factor), 0x7f);
  EXPECT_EQ(e4m3_scale(infinity, row.factor), 0x7f);
  EXPECT_EQ(e4m3_scale(1, 0), 0);
}

TEST(E4m3Scales, TinyOnesCountAsZero) {
  const RowFactor row = factor_of({0x1p-130f, 0x1p-149f});
  EXPECT_TRUE(row.exact);
  EXPECT_EQ(row.factor, 0);
  expect_products({0x1p-99f, 0x1p-100f, 0x1p-112f});
}

// The check tries factors of earlier rows, and packing takes each row's own: both must agree.
TEST(E4m3Scales, CheckAcceptsOnlyRowsThatHaveAFactor) {
  ThreadPool pool(1);
  const float e = 1.9f * 0x1p-21f;
  CanonicalMatrix matrix;
  matrix.n = 2, matrix.k = 64, matrix.key = kNvfp4Static;
  matrix.scales = {448, 1, 1, 1, 256 * (1 + e), 1.125f * (1 - e), 3.5f * (1 - e), 13 * (1 - e)};
  EXPECT_FALSE(factor_of({matrix.scales.begin() + 4, matrix.scales.end()}).exact);
  EXPECT_FALSE(check_e4m3_scales(matrix, 0, pool));
}

TEST(E4m3Scales, OthersAreRefusedWithTheirRow) {
  ThreadPool pool(2);
  CanonicalMatrix matrix;
  matrix.n = 300, matrix.k = 64, matrix.key = kNvfp4Static;
  matrix.scales.assign(300 * 4, 0.25f);
  EXPECT_TRUE(check_e4m3_scales(matrix, 0, pool));
  matrix.scales[299 * 4 + 2] = matrix.scales[260 * 4 + 1] = 0.26f;
  const Status refused = check_e4m3_scales(matrix, 1000, pool);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("scales of row 1260"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("0.25 and 0.26"));
  matrix.key.group.cols = 32;  // another scheme
  EXPECT_TRUE(check_e4m3_scales(matrix, 0, pool));
  matrix.key = kNvfp4Static, matrix.k = 16, matrix.scales.assign(300, 0.1f);  // one group
  EXPECT_TRUE(check_e4m3_scales(matrix, 0, pool));
}

}  // namespace
}  // namespace moracle::e4m3_scales_test
