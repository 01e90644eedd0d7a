// Tests floats quantized to block types of GGUF: values of a type's own grid, errors, extremes.
#include "quant/blocks/encode_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "quant/blocks/gguf_blocks.h"

namespace moracle::encode_blocks_test {
namespace {

using ::testing::HasSubstr;

std::vector<float> encoded(DType type, const std::vector<float>& values) {
  const Block unit = block(type);
  const auto count = static_cast<int64_t>(values.size()) / unit.elements;
  std::vector<std::byte> blocks(static_cast<size_t>(count * unit.bytes));
  const Status done = encode_blocks(type, values.data(), count, blocks.data());
  EXPECT_TRUE(done) << done.error().to_string();
  std::vector<float> read(values.size());
  decode_blocks(type, blocks.data(), count, read.data());
  return read;
}

class Random {
 public:
  int in(int low, int high) { return std::uniform_int_distribution(low, high)(bits_); }
  float normal() { return std::normal_distribution<float>()(bits_); }

 private:
  std::mt19937 bits_{7};
};

// Codes in [low, high] of a group, with both ends.
std::vector<int> codes_with_ends(Random& random, int count, int low, int high) {
  std::vector<int> codes(static_cast<size_t>(count));
  for (int& code : codes) code = random.in(low, high);
  codes[0] = low;
  codes[1] = high;
  return codes;
}

// 256 values that the type represents, with its scales as large as they can be: then no other
// scales fit them.
std::vector<float> values_on_grid(DType type, Random& random) {
  const float d =
      std::ldexp(1.0f + static_cast<float>(random.in(0, 1023)) / 1024, random.in(-9, 3));
  std::vector<float> values;
  const auto add = [&](const std::vector<int>& codes, float scale, float minimum) {
    for (const int code : codes) values.push_back(static_cast<float>(code) * scale - minimum);
  };
  switch (type) {
    case DType::kQ8_0:
      for (int g = 0; g < 8; ++g) add(codes_with_ends(random, 32, -126, 127), d, 0);
      break;
    case DType::kQ4_0:
      for (int g = 0; g < 8; ++g) add(codes_with_ends(random, 32, -8, 7), d, 0);
      break;
    case DType::kQ4K:
      for (int g = 0; g < 8; ++g) {
        const int scale = g == 2 ? 63 : random.in(1, 63), minimum = g == 5 ? 63 : random.in(0, 63);
        add(codes_with_ends(random, 32, 0, 15), d * static_cast<float>(scale),
            2 * d * static_cast<float>(minimum));
      }
      break;
    case DType::kQ6K:
      for (int g = 0; g < 16; ++g) {
        const int scale = g == 9 ? -128 : random.in(-127, 127);
        add(codes_with_ends(random, 16, -32, 31), d * static_cast<float>(scale), 0);
      }
      break;
    default: {  // MXFP4: twice the numbers of e2m1, with a power of two
      constexpr int kNumbers[] = {0, 1, 2, 3, 4, 6, 8, 12};
      for (int g = 0; g < 8; ++g) {
        std::vector<int> codes(32);
        for (int& code : codes) code = kNumbers[random.in(0, 7)] * (random.in(0, 1) * 2 - 1);
        codes[3] = 12;
        add(codes, std::ldexp(1.0f, random.in(-20, 20)), 0);
      }
    }
  }
  return values;
}

TEST(EncodeBlocks, KeepEveryValueOfTheTypesOwnGrid) {
  Random random;
  for (const DType type : encoded_blocks()) {
    for (int round = 0; round < 100; ++round) {
      const std::vector<float> values = values_on_grid(type, random);
      const std::vector<float> read = encoded(type, values);
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(read[i], values[i]) << name(type) << " round " << round << " element " << i;
    }
  }
}

// The squared error of one group when its range is spread over the codes, with f32 scales.
double rounding_error(DType type, const float* x, int count) {
  const auto [least, most] = std::minmax_element(x, x + count);
  const float largest = std::max(std::fabs(*least), std::fabs(*most));
  const float low = std::min(*least, 0.0f);
  double error = 0;
  for (int i = 0; i < count; ++i) {
    float value = 0;
    if (type == DType::kQ8_0) {
      value = std::nearbyint(x[i] / (largest / 127)) * (largest / 127);
    } else if (type == DType::kQ4K) {
      const float step = (*most - low) / 15;
      value = std::nearbyint((x[i] - low) / step) * step + low;
    } else if (type == DType::kMxfp4Block) {
      constexpr float kNumbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
      const float step = std::ldexp(1.0f, std::ilogb(largest) - 2);
      const float wanted = std::fabs(x[i]) / step;
      const float* const near = std::min_element(
          std::begin(kNumbers), std::end(kNumbers),
          [&](float a, float b) { return std::fabs(a - wanted) < std::fabs(b - wanted); });
      value = std::copysign(*near * step, x[i]);
    } else {
      const float codes = type == DType::kQ4_0 ? 8 : 32;
      const float scale = (largest == *most ? -largest : largest) / codes;
      value = std::clamp(std::nearbyint(x[i] / scale), -codes, codes - 1) * scale;
    }
    error += std::pow(static_cast<double>(value) - static_cast<double>(x[i]), 2);
  }
  return error;
}

// Stored scales have few bits, which costs less than the search for them gains.
TEST(EncodeBlocks, ErrAtMostOnePercentAboveRoundingWithFloatScales) {
  Random random;
  for (const DType type : encoded_blocks()) {
    std::vector<float> values(256 * 64);
    for (float& value : values) value = 0.02f * random.normal();
    const std::vector<float> read = encoded(type, values);
    double error = 0, rounding = 0;
    for (size_t i = 0; i < values.size(); ++i)
      error += std::pow(static_cast<double>(read[i]) - static_cast<double>(values[i]), 2);
    const int group = type == DType::kQ6K ? 16 : 32;
    for (size_t i = 0; i < values.size(); i += static_cast<size_t>(group))
      rounding += rounding_error(type, values.data() + i, group);
    EXPECT_LT(std::sqrt(error), 1.01 * std::sqrt(rounding)) << name(type);
    EXPECT_GT(error, 0) << name(type);
  }
}

TEST(EncodeBlocks, ZerosAndTinyValuesBecomeZeros) {
  for (const DType type : encoded_blocks()) {
    for (const float value : {0.0f, -0.0f, 1e-38f, -1e-40f}) {
      const std::vector<float> read = encoded(type, std::vector<float>(256, value));
      EXPECT_THAT(read, ::testing::Each(0.0f)) << name(type) << " " << value;
    }
  }
}

TEST(EncodeBlocks, ConstantsKeepTheirSign) {
  for (const DType type : encoded_blocks()) {
    for (const float value : {0.37f, -0.37f}) {
      const std::vector<float> read = encoded(type, std::vector<float>(256, value));
      for (const float one : read) EXPECT_NEAR(one, value, 0.37f / 7) << name(type);
    }
  }
}

TEST(EncodeBlocks, ScalesBeyondF16AreErrors) {
  for (const DType type : encoded_blocks()) {
    std::vector<float> values(512, 0.5f);
    values[300] = 3e9f;
    const Block unit = block(type);
    const int64_t count = 512 / unit.elements;
    std::vector<std::byte> blocks(static_cast<size_t>(count * unit.bytes));
    const Status done = encode_blocks(type, values.data(), count, blocks.data());
    if (type == DType::kMxfp4Block) {  // its exponents reach as far as f32's
      EXPECT_TRUE(done);
      continue;
    }
    ASSERT_FALSE(done) << name(type);
    EXPECT_EQ(done.error().kind, ErrorKind::kUnsupported);
    EXPECT_THAT(done.error().to_string(),
                HasSubstr("block " + std::to_string(300 / unit.elements)));
  }
}

}  // namespace
}  // namespace moracle::encode_blocks_test
