// Compares every code of bf16 and f16 with the definition of a binary float, written with ldexp.
#include "base/scalar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>

namespace moracle::scalar_test {
namespace {

struct Format {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  float (*decode)(uint16_t);
  uint16_t (*encode)(float);

  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(uint32_t code) const { return (code & 0x7fffu) > infinity(); }
  /// The value of a magnitude without its sign. For the code of infinity it is the next number
  /// after the largest one, which sets the rounding threshold.
  double value(uint32_t magnitude) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const int mantissa = static_cast<int>(magnitude & ((1u << mantissa_bits) - 1));
    const int implied = exponent == 0 ? 0 : 1 << mantissa_bits;
    return std::ldexp(implied + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
  }
};

void PrintTo(const Format& format, std::ostream* out) {
  *out << format.name;
}

class Scalar : public ::testing::TestWithParam<Format> {};

TEST_P(Scalar, DecodesEveryCodeExactly) {
  const Format& format = GetParam();
  for (uint32_t code = 0; code < 65536; ++code) {
    const float got = format.decode(static_cast<uint16_t>(code));
    ASSERT_EQ(std::signbit(got), (code & 0x8000u) != 0) << code;
    if (format.is_nan(code)) {
      ASSERT_TRUE(std::isnan(got)) << code;
    } else if ((code & 0x7fffu) == format.infinity()) {
      ASSERT_TRUE(std::isinf(got)) << code;
    } else {
      ASSERT_EQ(std::fabs(double{got}), format.value(code & 0x7fffu)) << code;
    }
  }
}

TEST_P(Scalar, EveryCodeRoundTrips) {
  const Format& format = GetParam();
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t back = format.encode(format.decode(static_cast<uint16_t>(code)));
    if (format.is_nan(code)) {
      ASSERT_TRUE(format.is_nan(back)) << code;
      ASSERT_EQ(back & 0x8000u, code & 0x8000u) << code;
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

TEST_P(Scalar, RoundsToNearestEven) {
  const Format& format = GetParam();
  // Beyond half of the last step, rounding gives infinity.
  for (uint32_t code = 0; code < format.infinity(); ++code) {
    const double exact = (format.value(code) + format.value(code + 1)) / 2;
    const auto middle = static_cast<float>(exact);
    ASSERT_EQ(double{middle}, exact) << "one bit more than the format fits in f32";
    const uint32_t even = code % 2 == 0 ? code : code + 1;
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, INFINITY);
    ASSERT_EQ(format.encode(middle), even) << code;
    ASSERT_EQ(format.encode(-middle), even | 0x8000u) << code;
    ASSERT_EQ(format.encode(below), code);
    ASSERT_EQ(format.encode(-below), code | 0x8000u);
    ASSERT_EQ(format.encode(above), code + 1);
    ASSERT_EQ(format.encode(-above), (code + 1) | 0x8000u);
  }
}

TEST_P(Scalar, OverflowBecomesInfinityAndUnderflowZero) {
  const Format& format = GetParam();
  const auto infinity = static_cast<uint16_t>(format.infinity());
  EXPECT_EQ(format.encode(std::numeric_limits<float>::max()), infinity);
  EXPECT_EQ(format.encode(-std::numeric_limits<float>::max()), infinity | 0x8000u);
  EXPECT_EQ(format.encode(INFINITY), infinity);
  EXPECT_EQ(format.encode(-INFINITY), infinity | 0x8000u);
  EXPECT_EQ(format.encode(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(format.encode(-std::numeric_limits<float>::denorm_min()), 0x8000u);
}

TEST_P(Scalar, NanStaysNanForAnyPayload) {
  const Format& format = GetParam();
  for (uint32_t payload : {1u, 0x1fffu, 0x2000u, 0xffffu, 0x10000u, 0x400000u, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const auto nan = std::bit_cast<float>(sign | 0x7f800000u | payload);
      EXPECT_TRUE(format.is_nan(format.encode(nan))) << payload;
      EXPECT_EQ(format.encode(nan) & 0x8000u, sign >> 16) << payload;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Scalar,
                         ::testing::Values(Format{"bf16", 8, 7, bf16_to_float, float_to_bf16},
                                           Format{"f16", 5, 10, f16_to_float, float_to_f16}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace moracle::scalar_test
