// Tests that folded weights keep their values, and which weights are refused.
#include "quant/fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/scalar.h"
#include "support/random_matrix.h"

namespace moracle::fold_test {
namespace {

using ::testing::HasSubstr;
using testing::values;

constexpr int64_t kAll = GroupShape::kAll;

MatrixShape shape_of(const QuantKey& key, int64_t n = 5, int64_t k = 384) {
  return {.n = n, .k = k, .key = key};
}

Scheme by_fp8(const QuantKey& key) {
  return {key, kFp8DynamicTokenSym};
}

// `spread`: exponents of a row differ by at most that.
CanonicalMatrix random_matrix(const QuantKey& key, int64_t n = 5, int64_t k = 384,
                              int spread = 14) {
  std::mt19937 random(3);
  CanonicalMatrix m = testing::random_matrix(key, n, k, random, 8);
  if (key.scale_dtype == DType::kF8E8M0) {
    for (float& scale : m.scales)
      scale = std::ldexp(1.0f, static_cast<int>(random() % (spread + 1)) - 9);
  }
  m.bias.assign(n, 0.5f);
  return m;
}

QuantKey with_zero_points(QuantKey key) {
  key.symmetric = false;
  return key;
}

TEST(Fold, KeepsEveryValue) {
  const QuantKey keys[] = {int4_static_group(128),
                           with_zero_points(int4_static_group(128)),
                           int4_static_group(kAll),
                           with_zero_points(int4_static_group(256)),
                           kMxfp4Static,
                           {DType::kF4E2M1, per_group(128)}};
  for (const QuantKey& key : keys) {
    for (const int threads : {1, 3}) {
      ThreadPool pool(threads);
      SCOPED_TRACE(name(by_fp8(key)));
      const Result<Scheme> scheme = folded_scheme(shape_of(key), by_fp8(key));
      ASSERT_TRUE(scheme) << scheme.error().to_string();
      EXPECT_EQ(scheme->activation, kFp8DynamicTokenSym);
      CanonicalMatrix packed = random_matrix(key, 400);
      const std::vector<double> before = values(packed);
      const Result<CanonicalMatrix> folded = fold(std::move(packed), scheme->weight, pool);
      ASSERT_TRUE(folded) << folded.error().to_string();
      EXPECT_EQ(folded->key, scheme->weight);
      EXPECT_EQ(folded->codes.size(), static_cast<size_t>(folded->n * folded->row_bytes()));
      EXPECT_EQ(folded->scales.size(), static_cast<size_t>(folded->n * folded->scale_cols()));
      EXPECT_EQ(folded->bias.size(), 400u);
      EXPECT_EQ(values(*folded), before);
    }
  }
}

TEST(Fold, NamesSchemesOfFoldedWeights) {
  const auto folded_name = [](const QuantKey& key) {
    return name(folded_scheme(shape_of(key), by_fp8(key)).value());
  };
  EXPECT_EQ(folded_name(int4_static_group(128)), "fp8-w8a8-g128-token");
  EXPECT_EQ(folded_name(with_zero_points(int4_static_group(256))), "fp8-w8a8-g256-token");
  EXPECT_EQ(folded_name(int4_static_group(kAll)), "fp8-w8a8-channel");
  EXPECT_EQ(folded_name(kMxfp4Static), "fp8-w8a8-channel");
}

// Producers give groups of zeros the smallest exponent.
TEST(Fold, IgnoresExponentsOfZeros) {
  CanonicalMatrix m = random_matrix(kMxfp4Static, 2, 128, 0);
  std::fill_n(m.storage.begin(), 16, std::byte{0x80});  // 0 and -0 in the first group of row 0
  m.scales[0] = std::ldexp(1.0f, -127);
  std::fill_n(m.storage.begin() + 64, 64, std::byte{0});  // all of row 1
  const std::vector<double> before = values(m);
  ThreadPool pool(1);
  const Result<CanonicalMatrix> folded = fold(std::move(m), kFp8StaticChannelSym, pool);
  ASSERT_TRUE(folded) << folded.error().to_string();
  EXPECT_EQ(values(*folded), before);
}

// Exponents 14 apart hold every code; one more loses 0.5 times a power of two, and larger codes
// stay exact.
TEST(Fold, RefusesExponentsThatAreTooFarApart) {
  ThreadPool pool(1);
  const auto folded = [&](int down, unsigned code) {
    CanonicalMatrix m = random_matrix(kMxfp4Static, 3, 128, 0);
    const size_t row = 2 * 64;
    std::fill_n(m.storage.begin() + row, 64, std::byte{0x77});  // 6
    m.scales[2 * 4 + 3] = std::ldexp(m.scales[2 * 4 + 2], -down);
    m.storage[row + 50] = static_cast<std::byte>(code << 4 | code);
    for (size_t i = 48; i < 64; ++i)
      if (i != 50) m.storage[row + i] = std::byte{0};
    const std::vector<double> before = values(m);
    Result<CanonicalMatrix> result = fold(std::move(m), kFp8StaticChannelSym, pool);
    if (result) {
      EXPECT_EQ(values(*result), before);
    }
    return result;
  };
  for (unsigned code = 1; code < 8; ++code) EXPECT_TRUE(folded(14, code)) << code;
  EXPECT_FALSE(folded(15, 1));  // 0.5
  EXPECT_TRUE(folded(15, 2));   // 1
  EXPECT_FALSE(folded(15, 3));  // 1.5
  EXPECT_TRUE(folded(17, 6));   // 4
  EXPECT_FALSE(folded(18, 6));
  EXPECT_FALSE(folded(200, 7));
  const Error error = folded(15, 1).error();
  EXPECT_EQ(error.kind, ErrorKind::kUnsupported);
  EXPECT_THAT(error.fact, HasSubstr("row 2"));
  EXPECT_THAT(error.fact, HasSubstr("at column 100"));
}

// e8m0 has a NaN, and e4m3 codes have no place for it in a scale that others share.
TEST(Fold, RefusesScalesThatAreNotFinite) {
  for (const bool zeros : {false, true}) {
    CanonicalMatrix m = random_matrix(kMxfp4Static, 3, 128, 0);
    if (zeros) std::fill_n(m.storage.begin() + 64, 16, std::byte{0});
    m.scales[4] = e8m0_to_float(255);
    ThreadPool pool(1);
    const auto refused = fold(std::move(m), kFp8StaticChannelSym, pool);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().fact, HasSubstr("row 1 has a scale of nan at column 0"));
  }
}

TEST(Fold, RefusesZeroPointsBeyondE4m3) {
  CanonicalMatrix m = random_matrix(with_zero_points(int4_static_group(128)));
  m.zero_points[4] = 9;
  ThreadPool pool(1);
  QuantKey key = kFp8StaticChannelSym;
  key.group.cols = 128;
  const auto refused = fold(std::move(m), key, pool);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("row 1 has the zero point 9"));
}

TEST(Fold, RefusesOtherSchemes) {
  const auto refusal = [](const MatrixShape& shape, const Scheme& scheme) {
    const auto refused = folded_scheme(shape, scheme);
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    return refused.error().to_string();
  };
  const auto of_key = [&](const QuantKey& key) { return refusal(shape_of(key), by_fp8(key)); };
  EXPECT_THAT(of_key(int4_static_group(32)), HasSubstr("they have 32"));
  EXPECT_THAT(of_key(int4_static_group(192)), HasSubstr("they have 192"));
  EXPECT_THAT(of_key(kNvfp4Static), HasSubstr("they have 16"));
  EXPECT_THAT(of_key(int8_static_group(128)), HasSubstr("int8-w8afp8-g128"));
  EXPECT_THAT(of_key(kFp8StaticChannelSym), HasSubstr("fp8-w8a8-channel"));
  QuantKey minimums = int4_static_group(128);
  minimums.minimums = true;
  EXPECT_THAT(of_key(minimums), HasSubstr("minimums"));
  const QuantKey int4 = int4_static_group(128);
  MatrixShape act_order = shape_of(int4);
  act_order.group_index = true;
  EXPECT_THAT(refusal(act_order, by_fp8(int4)), HasSubstr("act-order"));
  EXPECT_THAT(refusal(shape_of(int4), {int4, {}}), HasSubstr("4-bit weights and fp8 activations"));
  EXPECT_THAT(refusal(shape_of(int4), {int4, kInt8DynamicTokenSym}), HasSubstr("int4-w4a8-g128"));
  EXPECT_THAT(refusal(shape_of(int4), {int4, kFp8StaticTensorSym}), HasSubstr("are stored"));
}

}  // namespace
}  // namespace moracle::fold_test
