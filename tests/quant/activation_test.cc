// Tests int8 quantization of activations against the same formula in double.
#include "quant/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/ops.h"
#include "moracle/device.h"
#include "support/floats.h"

namespace moracle::activation_test {
namespace {

struct Quantized {
  std::vector<int> codes;
  float scale;
};
Quantized quantize(const std::vector<float>& x) {
  std::vector<int8_t> codes(x.size(), int8_t{99});
  const float scale = quantize_int8_token(x.data(), static_cast<int64_t>(x.size()), codes.data());
  return {{codes.begin(), codes.end()}, scale};
}

TEST(Int8Token, LargestMagnitudeMapsToPlusMinus127) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> exponent(-30, 30);
  for (int i = 0; i < 20000; ++i) {
    const float largest = std::exp2(exponent(random));
    const Quantized q = quantize({largest, -largest, largest / 3});
    ASSERT_EQ(q.codes[0], 127) << largest;
    ASSERT_EQ(q.codes[1], -127) << largest;
    ASSERT_EQ(q.codes[2], 42) << largest;
    ASSERT_EQ(q.scale, largest / 127) << largest;
  }
  EXPECT_EQ(quantize({std::numeric_limits<float>::max(), -1}).codes, (std::vector<int>{127, 0}));
}

TEST(Int8Token, MidpointsRoundToEven) {
  // A largest value of 127 makes the scale exactly 1, so that every midpoint is exact.
  std::vector<float> x = {127};
  for (int code = -127; code < 127; ++code) x.push_back(static_cast<float>(code) + 0.5f);
  const Quantized q = quantize(x);
  ASSERT_EQ(q.scale, 1.0f);
  for (int code = -127; code < 127; ++code) {
    EXPECT_EQ(q.codes[code + 128], code % 2 == 0 ? code : code + 1) << code << " and a half";
  }
}

TEST(Int8Token, RoundsToNearestOffMidpoint) {
  std::vector<float> x = {127};
  for (int code = -127; code < 127; ++code) {
    const float middle = static_cast<float>(code) + 0.5f;
    x.push_back(std::nextafter(middle, -200.0f));
    x.push_back(std::nextafter(middle, 200.0f));
  }
  const Quantized q = quantize(x);
  for (int code = -127; code < 127; ++code) {
    EXPECT_EQ(q.codes[1 + 2 * (code + 127)], code);
    EXPECT_EQ(q.codes[2 + 2 * (code + 127)], code + 1);
  }
}

// The definition rounds twice in f32: the scale, then the quotient. Scalar double arithmetic gives
// the same result, for any compiler transformation of the loop.
TEST(Int8Token, EqualAtEveryOptimizationLevel) {
  std::mt19937 random(7);
  for (int64_t count : {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 1000, 4099}) {
    for (float size : {1.0f, 1e-5f, 3e4f}) {
      const std::vector<float> x = testing::normal_floats(random, count, size);
      const Quantized q = quantize(x);
      double largest = 1e-10f;
      for (float value : x) largest = std::max(largest, std::fabs(double{value}));
      const auto scale = static_cast<float>(largest / 127);
      ASSERT_EQ(q.scale, scale);
      for (int64_t i = 0; i < count; ++i) {
        const auto quotient = static_cast<float>(double{x[i]} / double{scale});
        ASSERT_EQ(q.codes[i], std::nearbyint(double{quotient})) << x[i] << " / " << scale;
      }
    }
  }
}

// This file and the library's kernels include the same definition but are compiled apart.
TEST(Int8Token, MatchesDeviceResult) {
  const auto device = *open_device("cpu", 2);
  std::mt19937 random(8);
  const int64_t rows = 37, cols = 131, padded = 132;
  std::vector<float> x = testing::normal_floats(random, rows * cols), scales(rows);
  std::vector<int8_t> codes(rows * padded, int8_t{99});
  const Matrix to{codes.data(), DType::kI8, rows, padded, padded};
  ASSERT_TRUE(kernel_device(*device).ops().quantize(
      Matrix::f32(x.data(), rows, cols), kInt8DynamicTokenSym, {to, scales.data(), 1}, {}));
  for (int64_t r = 0; r < rows; ++r) {
    const Quantized q = quantize({x.begin() + r * cols, x.begin() + (r + 1) * cols});
    EXPECT_EQ(scales[r], q.scale);
    for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(codes[r * padded + c], q.codes[c]);
    EXPECT_EQ(codes[r * padded + cols], 0);
  }
}

// No division by zero.
TEST(Int8Token, ZeroRowGivesZeroWithFiniteScale) {
  for (float zero : {0.0f, -0.0f}) {
    const Quantized q = quantize(std::vector<float>(33, zero));
    EXPECT_EQ(q.codes, std::vector<int>(33, 0));
    EXPECT_GT(q.scale, 0.0f);
    EXPECT_TRUE(std::isfinite(q.scale));
  }
  EXPECT_GT(quantize({}).scale, 0.0f) << "a row without columns";
}

TEST(Int8Token, DenormalRowGivesZero) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Quantized q = quantize({tiny, -tiny, 100 * tiny, 1e-39f});
  EXPECT_EQ(q.codes, std::vector<int>(4, 0));
  EXPECT_EQ(q.scale, 1e-10f / 127);
  // From the smallest scale on, the scale follows the row.
  EXPECT_EQ(quantize({1e-10f}).codes, std::vector<int>{127});
  EXPECT_EQ(quantize({1e-11f}).codes, std::vector<int>{13});
}

TEST(Int8Token, NonFiniteRowGivesNanProductsAndBoundedCodes) {
  for (float wild : {INFINITY, -INFINITY, NAN, -NAN, std::numeric_limits<float>::signaling_NaN()}) {
    for (size_t at : {0, 1, 16, 40}) {
      std::vector<float> x(41, 1.5f);
      x[at] = wild;
      const Quantized q = quantize(x);
      EXPECT_TRUE(std::isnan(q.scale)) << wild << " at " << at;
      EXPECT_EQ(q.codes, std::vector<int>(41, 0));
    }
  }
}

TEST(Int8Token, IsSymmetric) {
  std::mt19937 random(3);
  const std::vector<float> x = testing::normal_floats(random, 500);
  std::vector<float> negative;
  for (float value : x) negative.push_back(-value);
  const Quantized q = quantize(x), n = quantize(negative);
  EXPECT_EQ(q.scale, n.scale);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(q.codes[i], -n.codes[i]);
}

}  // namespace
}  // namespace moracle::activation_test
