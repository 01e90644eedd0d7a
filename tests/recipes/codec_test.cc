// codec.patch adds float8 e5m2.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "conformance/conformance.h"
#include "layout/layout.h"
#include "quant/codec.h"

namespace moracle {
namespace {

/// As the OCP's paper on 8-bit floats defines it: bias 15, subnormals, infinities.
double e5m2(int code) {
  const int exponent = code >> 2 & 31, mantissa = code & 3;
  const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                           : exponent == 0 ? std::ldexp(mantissa / 4.0, -14)
                                           : std::ldexp(1 + mantissa / 4.0, exponent - 15);
  return std::copysign(magnitude, code < 128 ? 1 : -1);
}

TEST(Codec, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const std::byte row[] = {std::byte{0x55}, static_cast<std::byte>(code)};
    double got = 0;
    ASSERT_TRUE(visit_codec(DType::kF8E5M2, [&]<class Codec>() { got = Codec::decode(row, 1); }));
    if (std::isnan(e5m2(code))) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, e5m2(code)) << code;
      EXPECT_EQ(std::signbit(got), code >= 128) << code;
    }
  }
}

TEST(Codec, ScalesItsCodes) {
  const MatrixShape shape{.n = 5, .k = 33, .key = {DType::kF8E5M2, per_group(8)}};
  const CanonicalMatrix matrix = conformance::random_matrix(shape, 1);
  std::vector<double> row(shape.k);
  for (int64_t r = 0; r < shape.n; ++r) {
    dequantize_row(matrix, r, row.data());
    for (int64_t c = 0; c < shape.k; ++c) {
      const double code = e5m2(static_cast<int>(matrix.codes[r * shape.k + c]));
      ASSERT_TRUE(std::isfinite(code)) << "random weights are numbers";
      EXPECT_EQ(row[c], code * matrix.scales[r * 5 + c / 8]) << r << ", " << c;
    }
  }
}

TEST(Codec, StoredInCanonicalLayout) {
  const auto& holds = kCanonicalLayout.holds;
  EXPECT_NE(std::find(holds.begin(), holds.end(), DType::kF8E5M2), holds.end());
}

}  // namespace
}  // namespace moracle
