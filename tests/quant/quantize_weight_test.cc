// Tests weights quantized by this library: the formulas, the rounding at every midpoint, and
// forbidden outputs.
#include "quant/quantize_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/scalar.h"
#include "moracle/quant.h"
#include "quant/activation.h"
#include "quant/codec.h"
#include "support/floats.h"
#include "support/must.h"

namespace moracle::quantize_weight_test {
namespace {

ThreadPool& pool() {
  static ThreadPool threads(3);
  return threads;
}

using ::testing::HasSubstr;

CanonicalMatrix floats(int64_t n, int64_t k, const std::vector<float>& values,
                       DType dtype = DType::kF32) {
  CanonicalMatrix matrix;
  matrix.n = n;
  matrix.k = k;
  matrix.key = QuantKey{dtype};
  matrix.storage.resize(n * matrix.row_bytes());
  for (int64_t i = 0; i < n * k; ++i) {
    std::byte* to = matrix.storage.data() + i * bits(dtype) / 8;
    const uint16_t half =
        dtype == DType::kBF16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
    if (dtype == DType::kF32)
      std::memcpy(to, &values[i], sizeof values[i]);
    else
      std::memcpy(to, &half, sizeof half);
  }
  matrix.codes = matrix.storage;
  return matrix;
}

CanonicalMatrix quantized(const CanonicalMatrix& matrix, const QuantKey& key) {
  return testing::must(quantize_weight(matrix, key, pool()));
}

std::vector<double> codes_of(const CanonicalMatrix& matrix) {
  std::vector<double> codes(matrix.n * matrix.k);
  for (int64_t r = 0; r < matrix.n; ++r) unpack_row(matrix, r, codes.data() + r * matrix.k);
  return codes;
}

std::vector<float> random_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  return testing::normal_floats(random, count, 0.05f);
}

const std::vector<QuantKey>& keys() {
  static const std::vector<QuantKey> kKeys = {kInt8StaticChannelSym, kFp8StaticTensorSym,
                                              kFp8StaticChannelSym, kFp8Static128BlockSym,
                                              kMxfp8Static};
  return kKeys;
}

// The elements of [rows, cols] that share the scale of element (r, c), derived from the key only.
bool share(const QuantKey& key, int64_t r, int64_t c, int64_t r2, int64_t c2) {
  const auto same = [](int64_t size, int64_t a, int64_t b) {
    return size == GroupShape::kAll || a / size == b / size;
  };
  return same(key.group.rows, r, r2) && same(key.group.cols, c, c2);
}

// Checks by brute force that each scale follows the largest magnitude of its elements, and that
// each code is the nearest to value / scale. No block or group divides the sizes.
TEST(QuantizeWeight, UsesBlockScaleAndNearestCode) {
  for (const QuantKey& key : keys()) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3, 40}, {130, 33}, {1, 129}}) {
      SCOPED_TRACE(name(Scheme{key, {}}) + " [" + std::to_string(n) + ", " + std::to_string(k) +
                   "]");
      const std::vector<float> values = random_values(n * k, 5);
      const CanonicalMatrix matrix = quantized(floats(n, k, values), key);
      EXPECT_EQ(matrix.key.group, key.group == GroupShape{} ? kPerRow : key.group);
      ASSERT_EQ(static_cast<int64_t>(matrix.scales.size()),
                matrix.scale_rows() * matrix.scale_cols());
      const std::vector<double> codes = codes_of(matrix);
      for (int64_t r = 0; r < n; r += 7) {
        for (int64_t c = 0; c < k; ++c) {
          float largest = 0;
          for (int64_t r2 = 0; r2 < n; ++r2) {
            for (int64_t c2 = 0; c2 < k; ++c2) {
              if (share(key, r, c, r2, c2))
                largest = std::max(largest, std::fabs(values[r2 * k + c2]));
            }
          }
          const float scale = matrix.scales[r / matrix.key.group.rows * matrix.scale_cols() +
                                            c / matrix.group_cols()];
          const WeightScale want = weight_scale(key, largest);
          ASSERT_EQ(scale, want.scale) << r << ", " << c;
          const uint8_t code = want.encode(key, values[r * k + c]);
          ASSERT_EQ(codes[r * k + c], decode(key, code)) << r << ", " << c;
        }
      }
    }
  }
}

TEST(QuantizeWeight, ScalesByLargestCodeOfFormat) {
  EXPECT_EQ(weight_scale(kInt8StaticChannelSym, 1.27f).scale, 1.27f / 127);
  for (const QuantKey& key : {kFp8StaticTensorSym, kFp8StaticChannelSym})
    EXPECT_EQ(weight_scale(key, 1.3f).scale, 1.3f / 448);
  // transformers divides by the reciprocal of a reciprocal, which rounds differently.
  EXPECT_EQ(weight_scale(kFp8Static128BlockSym, 1.3f).scale, 1.0f / (448.0f * (1.0f / 1.3f)));
  EXPECT_EQ(weight_scale(kMxfp8Static, 448).scale, 1);
  EXPECT_EQ(weight_scale(kMxfp8Static, std::nextafter(448.0f, 449.0f)).scale, 2);
  EXPECT_EQ(weight_scale(kMxfp8Static, 0.07f).scale, 0x1p-12f);
}

// Blocks: the scale is within two units in the last place of largest / 448, for any largest value.
TEST(QuantizeWeight, BlockScaleIsMaximumOver448WithinTwoRoundings) {
  std::mt19937 random(9);
  std::uniform_real_distribution<float> exponent(-30, 30);
  for (int i = 0; i < 100'000; ++i) {
    const float largest = std::exp2(exponent(random));
    const double exact = static_cast<double>(largest) / 448;
    EXPECT_NEAR(weight_scale(kFp8Static128BlockSym, largest).scale / exact, 1, 2 * 0x1p-23);
  }
}

// Every code, and every midpoint between neighbours: ties go to the even code.
TEST(QuantizeWeight, RoundsEveryInt8MidpointToEven) {
  std::vector<float> values = {127};
  for (int code = -127; code < 127; ++code) values.push_back(static_cast<float>(code) + 0.5f);
  const CanonicalMatrix matrix =
      quantized(floats(1, static_cast<int64_t>(values.size()), values), kInt8StaticChannelSym);
  ASSERT_EQ(matrix.scales[0], 1);
  const std::vector<double> codes = codes_of(matrix);
  for (size_t i = 1; i < values.size(); ++i)
    EXPECT_EQ(codes[i], std::nearbyint(static_cast<double>(values[i]))) << values[i];
}

TEST(QuantizeWeight, NeverGivesInt8CodeMinus128) {
  for (int i = 1; i < 0x7f80; ++i) {  // every positive bf16 but the infinity
    const float largest = bf16_to_float(static_cast<uint16_t>(i));
    const CanonicalMatrix matrix =
        quantized(floats(1, 2, {-largest, largest}), kInt8StaticChannelSym);
    const std::vector<double> codes = codes_of(matrix);
    ASSERT_EQ(codes[0], -codes[1]) << largest;
    if (largest >= 1e-10f) {
      ASSERT_EQ(codes[1], 127) << largest;
    }
  }
}

TEST(QuantizeWeight, RoundsEveryE4m3MidpointToEven) {
  std::vector<float> values = {448};
  std::vector<float> want = {448};
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_float(static_cast<uint8_t>(code)),
                high = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    for (const float sign : {1.0f, -1.0f}) {
      values.insert(values.end(), {sign * low, sign * middle, sign * std::nextafter(middle, 0.0f),
                                   sign * std::nextafter(middle, 1000.0f)});
      want.insert(want.end(),
                  {sign * low, sign * (code % 2 == 0 ? low : high), sign * low, sign * high});
    }
  }
  const auto k = static_cast<int64_t>(values.size());
  for (const QuantKey& key : {kFp8StaticTensorSym, kFp8StaticChannelSym}) {
    const CanonicalMatrix matrix = quantized(floats(1, k, values), key);
    ASSERT_EQ(matrix.scales[0], 1);
    const std::vector<double> codes = codes_of(matrix);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(codes[i], want[i]) << values[i];
  }
  // mxfp8: the same, with a 448 in each group.
  for (size_t i = 0; i < values.size(); ++i) {
    const CanonicalMatrix matrix = quantized(floats(1, 2, {448, values[i]}), kMxfp8Static);
    ASSERT_EQ(matrix.scales[0], 1);
    EXPECT_EQ(codes_of(matrix)[1], want[i]) << values[i];
  }
}

TEST(QuantizeWeight, WidensSixteenBitFloatsExactly) {
  const std::vector<float> values = random_values(3 * 64, 8);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> narrow = values;
    for (float& value : narrow) {
      value = dtype == DType::kBF16 ? bf16_to_float(float_to_bf16(value))
                                    : f16_to_float(float_to_f16(value));
    }
    for (const QuantKey& key : keys()) {
      const CanonicalMatrix from_16 = quantized(floats(3, 64, values, dtype), key),
                            from_32 = quantized(floats(3, 64, narrow), key);
      EXPECT_EQ(from_16.scales, from_32.scales);
      EXPECT_EQ(from_16.storage, from_32.storage);
    }
  }
}

// A scale of 0 would make 0/0.
TEST(QuantizeWeight, ZerosGetFiniteScaleAndZeroCodes) {
  for (const float zero : {0.0f, -0.0f}) {
    for (const QuantKey& key : keys()) {
      std::vector<float> values(130 * 160, zero);
      const CanonicalMatrix all = quantized(floats(130, 160, values), key);
      for (const float scale : all.scales) {
        EXPECT_GT(scale, 0);
        EXPECT_TRUE(std::isfinite(scale));
      }
      for (const double code : codes_of(all)) ASSERT_EQ(code, 0);
      // One row, group and block of zeros, next to nonzero ones.
      std::fill(values.begin(), values.begin() + 160, 0.25f);
      for (const double code : codes_of(quantized(floats(130, 160, values), key)))
        ASSERT_TRUE(std::isfinite(code));
    }
  }
}

TEST(QuantizeWeight, AcceptsWholeFloatRange) {
  for (const float size : {std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-12f, 1e-10f, 1e-9f,
                           1e30f, std::numeric_limits<float>::max()}) {
    for (const QuantKey& key : keys()) {
      const CanonicalMatrix matrix = quantized(floats(1, 3, {size, -size, 0}), key);
      ASSERT_TRUE(std::isfinite(matrix.scales[0]) && matrix.scales[0] > 0) << size;
      const std::vector<double> codes = codes_of(matrix);
      EXPECT_EQ(codes[0], -codes[1]);
      EXPECT_EQ(codes[2], 0);
      if (size >= 1e-9f) {
        EXPECT_NEAR(codes[0] * matrix.scales[0] / size, 1, 1.0 / 16);
      }
    }
  }
}

TEST(QuantizeWeight, RejectsNonFiniteWeights) {
  for (const float wild : {INFINITY, -INFINITY, std::nanf("")}) {
    for (const QuantKey& key : keys()) {
      std::vector<float> values(140 * 40, 0.5f);
      values[133 * 40 + 39] = wild;
      const auto result = quantize_weight(floats(140, 40, values), key, pool());
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kBadFile);
      EXPECT_THAT(result.error().fact, HasSubstr("element [133, 39] is "));
    }
  }
}

TEST(QuantizeWeight, RejectsUnknownKeysAndCodesAsInput) {
  const CanonicalMatrix matrix = floats(2, 2, {1, 2, 3, 4});
  for (const QuantKey& key : {int4_static_group(128), int8_static_group(128), kMxfp4Static,
                              kInt8DynamicTokenSym, kBF16Weight}) {
    EXPECT_FALSE(can_quantize_weight(key));
    const auto result = quantize_weight(matrix, key, pool());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kUnsupported);
  }
  const auto twice =
      quantize_weight(quantized(matrix, kInt8StaticChannelSym), kMxfp8Static, pool());
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().fact, HasSubstr("int8-w8a16-channel"));
}

TEST(QuantizeWeight, KeepsTheBias) {
  CanonicalMatrix matrix = floats(2, 2, {1, 2, 3, 4});
  matrix.bias = {7, 8};
  for (const QuantKey& key : keys()) EXPECT_EQ(quantized(matrix, key).bias, matrix.bias);
}

TEST(OnlineSchemes, ParseUserNameAndFullName) {
  const std::pair<const char*, const char*> names[] = {
      {"int8-per-channel", "int8-w8a8"},
      {"int8-per-channel-weight-only", "int8-w8a16-channel"},
      {"fp8-per-tensor", "fp8-w8a8-tensor"},
      {"fp8-per-channel", "fp8-w8a8-channel"},
      {"fp8-per-block", "fp8-w8a8-block128x128"},
      {"mxfp8", "mxfp8-w8a8"},
  };
  for (const auto& [theirs, ours] : names) {
    for (const char* text : {theirs, ours}) {
      const auto scheme = parse_online_scheme(text);
      ASSERT_TRUE(scheme) << text;
      EXPECT_EQ(name(*scheme), ours);
    }
  }
  for (const OnlineScheme& online : online_schemes()) {
    EXPECT_TRUE(can_quantize_weight(online.scheme.weight));
    EXPECT_EQ(*parse_online_scheme(online.name), online.scheme);
    EXPECT_EQ(*parse_scheme(name(online.scheme)), online.scheme) << online.name;
    if (online.scheme.activation) {
      EXPECT_TRUE(can_quantize(*online.scheme.activation));
    }
  }
  for (const char* text : {"", "fp8", "int4-w4a16-g128", "FP8-per-block", "bf16", "none"}) {
    const auto scheme = parse_online_scheme(text);
    ASSERT_FALSE(scheme) << text;
    EXPECT_THAT(scheme.error().need, HasSubstr("fp8-per-block (fp8-w8a8-block128x128)"));
    EXPECT_THAT(scheme.error().need, HasSubstr("mxfp8-w8a16"));
  }
}

// Threads share the rows and the search for non-finite values.
TEST(QuantizeWeight, EqualForAnyThreadCount) {
  constexpr int64_t kN = 1000, kK = 300;
  std::mt19937 random(5);
  const std::vector<float> values = testing::normal_floats(random, kN * kK);
  std::vector<float> broken = values;
  broken[700 * kK + 3] = INFINITY;
  broken[999 * kK + 1] = NAN;
  ThreadPool alone(1);
  for (const OnlineScheme& online : online_schemes()) {
    const QuantKey& key = online.scheme.weight;
    const auto want = quantize_weight(floats(kN, kK, values), key, alone);
    ASSERT_TRUE(want);
    for (const int threads : {2, 3, 8}) {
      ThreadPool several(threads);
      const auto got = quantize_weight(floats(kN, kK, values), key, several);
      ASSERT_TRUE(got);
      EXPECT_TRUE(got->storage == want->storage) << name(online.scheme) << ", " << threads;
      EXPECT_TRUE(got->scales == want->scales) << name(online.scheme) << ", " << threads;
      const auto refused = quantize_weight(floats(kN, kK, broken), key, several);
      ASSERT_FALSE(refused);
      EXPECT_THAT(refused.error().fact, ::testing::HasSubstr("element [700, 3] is inf"));
    }
  }
}

}  // namespace
}  // namespace moracle::quantize_weight_test
