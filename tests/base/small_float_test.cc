// Compares every code and midpoint of FP8, FP4 and power-of-two scales with the definitions.
#include <gtest/gtest.h>

#include <cmath>

#include "base/scalar.h"

namespace moracle::small_float_test {
namespace {

// E4M3 from its fields: bias 7, no infinities, all ones is NaN.
double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 128 ? -magnitude : magnitude;
}

TEST(E4M3, DecodesAndRoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<uint8_t>(code);
    const float value = e4m3_to_float(bits);
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(float_to_e4m3(value) & 127, 127);
      continue;
    }
    EXPECT_EQ(value, e4m3_value(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128);
    EXPECT_EQ(float_to_e4m3(value), bits);
  }
}

TEST(E4M3, RoundsToNearestEven) {
  for (int code = 0; code < 126; ++code) {
    const auto low = static_cast<uint8_t>(code), high = static_cast<uint8_t>(code + 1);
    const float middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    const uint8_t even = code % 2 == 0 ? low : high;
    EXPECT_EQ(float_to_e4m3(middle), even) << code;
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 0.0f)), low);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, 1e9f)), high);
    EXPECT_EQ(float_to_e4m3(-middle), even | 128);
  }
}

TEST(E4M3, SaturatesBeyond448) {
  for (float value : {448.0f, 449.0f, 464.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(float_to_e4m3(value), 126) << value;
    EXPECT_EQ(float_to_e4m3(-value), 254) << value;
  }
}

TEST(E8M0, CodesArePowersOfTwoAndLastIsNan) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(code)), std::ldexp(1.0f, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
}

TEST(E2M1, HasSixteenValues) {
  const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_to_float(code), values[code]);
    EXPECT_EQ(e2m1_to_float(code | 8), -values[code]);
    EXPECT_TRUE(std::signbit(e2m1_to_float(code | 8)));
  }
}

}  // namespace
}  // namespace moracle::small_float_test
