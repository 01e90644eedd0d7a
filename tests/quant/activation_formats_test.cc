// Tests dynamic quantization to fp8 and mxfp8: limits of the scale, ties, non-finite values.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/scalar.h"
#include "quant/activation.h"

namespace moracle::activation_formats_test {
namespace {

TEST(Fp8Activations, MapLargestMagnitudeTo448) {
  const std::vector<float> x = {0.1f, -7.0f, 3.5f, 0.0f};
  uint8_t codes[4];
  float scale = 0;
  quantize_row(kFp8DynamicTokenSym, x.data(), 4, codes, &scale);
  EXPECT_EQ(scale, 7.0f / 448.0f);
  EXPECT_EQ(e4m3_to_float(codes[1]), -448.0f);
  EXPECT_EQ(e4m3_to_float(codes[2]), 224.0f);
  EXPECT_EQ(codes[3], 0);
}

TEST(Fp8Activations, ZeroRowGivesZero) {
  const std::vector<float> x(64);
  for (const QuantKey& key : {kFp8DynamicTokenSym, kFp8Dynamic128Sym, kMxfp8Dynamic}) {
    uint8_t codes[64];
    float scales[2];
    quantize_row(key, x.data(), 64, codes, scales);
    for (uint8_t code : codes) EXPECT_EQ(code, 0);
    EXPECT_GT(scales[0], 0) << "a scale of zero would divide by zero elsewhere";
  }
}

TEST(Fp8Activations, QuantizeGroupsSeparately) {
  std::vector<float> x(300, 1.0f);
  x[200] = 1e4f;
  std::vector<uint8_t> codes(300);
  std::vector<float> scales(num_groups(kFp8Dynamic128Sym, 300));
  ASSERT_EQ(scales.size(), 3u) << "the last group is shorter";
  quantize_row(kFp8Dynamic128Sym, x.data(), 300, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 1.0f / 448.0f);
  EXPECT_EQ(scales[1], 1e4f / 448.0f);
  EXPECT_EQ(scales[2], 1.0f / 448.0f);
}

TEST(Mxfp8Activations, UseSmallestPowerOfTwoThatDoesNotSaturate) {
  const struct {
    float largest, scale;
  } cases[] = {{448.0f, 1.0f}, {448.1f, 2.0f},  {447.0f, 1.0f},        {224.0f, 0.5f},
               {224.1f, 1.0f}, {1.0f, 0x1p-8f}, {0x1p-100f, 0x1p-108f}};
  for (const auto& c : cases) {
    const float scale = scale_for(kMxfp8Dynamic, c.largest);
    EXPECT_EQ(scale, c.scale) << c.largest;
    EXPECT_LE(c.largest / scale, 448.0f);
  }
}

TEST(Activations, NonFiniteValuePoisonsOnlyItsGroup) {
  for (const QuantKey& key :
       {kFp8DynamicTokenSym, kFp8Dynamic128Sym, kMxfp8Dynamic, kInt8DynamicTokenSym}) {
    for (float bad : {INFINITY, -INFINITY, static_cast<float>(NAN)}) {
      std::vector<float> x(256, 1.0f);
      x[3] = bad;
      std::vector<uint8_t> codes(256, 99);
      std::vector<float> scales(num_groups(key, 256));
      quantize_row(key, x.data(), 256, codes.data(), scales.data());
      EXPECT_TRUE(std::isnan(scales[0]));
      EXPECT_EQ(codes[0], 0);
      if (scales.size() > 1) {
        EXPECT_FALSE(std::isnan(scales.back()));
      }
    }
  }
}

TEST(Activations, CanQuantizeIsFalseForStoredAndPerTensorScales) {
  EXPECT_TRUE(can_quantize(kFp8Dynamic128Sym));
  EXPECT_TRUE(can_quantize(fp8_dynamic_group(64)));
  EXPECT_FALSE(can_quantize(kFp8StaticTensorSym)) << "its scales are stored, not made";
  QuantKey by_tensor = kFp8DynamicTokenSym;
  by_tensor.group = GroupShape{};
  EXPECT_FALSE(can_quantize(by_tensor)) << "it would depend on the batch";
}

}  // namespace
}  // namespace moracle::activation_formats_test
