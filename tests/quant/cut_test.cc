// Tests that cut matrices keep the values of the whole one.
#include "quant/cut.h"

#include <gtest/gtest.h>

#include "quant/codec.h"
#include "timing/random_matrix.h"

namespace moracle::cut_test {
namespace {

std::vector<double> row_of(const CanonicalMatrix& matrix, int64_t r) {
  std::vector<double> values(matrix.k);
  dequantize_row(matrix, r, values.data());
  return values;
}

MatrixShape shape_of(const char* scheme, int64_t n, int64_t k) {
  return {.n = n, .k = k, .key = parse_scheme(scheme)->weight, .bias = true};
}

void expect_scales(const CanonicalMatrix& cut, const CanonicalMatrix& whole) {
  const int64_t scales = whole.scales.empty() ? 0 : cut.scale_rows() * cut.scale_cols();
  EXPECT_EQ(static_cast<int64_t>(cut.scales.size()), scales);
  EXPECT_EQ(cut.zero_points.size(), whole.zero_points.empty() ? 0 : cut.scales.size());
  EXPECT_EQ(cut.minimums.size(), whole.minimums.empty() ? 0 : cut.scales.size());
}

constexpr const char* kSchemes[] = {
    "bf16",        "int4-w4a16-g128-asym",   "fp8-w8a8-block128x128", "int8-w8a16-channel",
    "mxfp4-w4a16", "int4-w4a16-g32-asym-min"};

// 300 rows end within a block of 128.
TEST(CutMatrix, RowsKeepTheirValues) {
  for (const char* scheme : kSchemes) {
    const MatrixShape shape = shape_of(scheme, 300, 256);
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 128}, {128, 172}}) {
      const CanonicalMatrix whole = timing::random_matrix(shape, 1);
      const CanonicalMatrix cut = cut_rows(timing::random_matrix(shape, 1), first, count);
      ASSERT_EQ(cut.n, count);
      expect_scales(cut, whole);
      for (int64_t r = 0; r < count; ++r)
        ASSERT_EQ(row_of(cut, r), row_of(whole, first + r)) << scheme << ", row " << r;
      for (size_t r = 0; r < cut.bias.size(); ++r)
        EXPECT_EQ(cut.bias[r], whole.bias[static_cast<size_t>(first) + r]);
    }
  }
}

// A share of 192 rows begins within a block of 128; a block of 64 has a scale of its own.
TEST(CutMatrix, DividedBlocksKeepTheirValues) {
  const MatrixShape shape = shape_of("fp8-w8a8-block128x128", 300, 256);
  const CanonicalMatrix whole = timing::random_matrix(shape, 1);
  const CanonicalMatrix divided = divide_blocks(timing::random_matrix(shape, 1), 64);
  EXPECT_EQ(divided.scale_rows(), 5);
  expect_scales(divided, whole);
  for (int64_t r = 0; r < whole.n; ++r) ASSERT_EQ(row_of(divided, r), row_of(whole, r)) << r;
  const CanonicalMatrix cut =
      cut_rows(divide_blocks(timing::random_matrix(shape, 1), 64), 192, 108);
  for (int64_t r = 0; r < cut.n; ++r) ASSERT_EQ(row_of(cut, r), row_of(whole, 192 + r)) << r;
}

TEST(CutMatrix, ColumnsKeepTheirValuesAndOneShareKeepsBias) {
  for (const char* scheme : kSchemes) {
    const CanonicalMatrix whole = timing::random_matrix(shape_of(scheme, 130, 256), 2);
    for (const bool keeps_bias : {true, false}) {
      const CanonicalMatrix cut = cut_columns(whole, 128, 128, keeps_bias);
      expect_scales(cut, whole);
      for (int64_t r = 0; r < cut.n; ++r) {
        const std::vector<double> all = row_of(whole, r);
        ASSERT_EQ(row_of(cut, r), std::vector<double>(all.begin() + 128, all.end()))
            << scheme << ", row " << r;
      }
      for (size_t r = 0; r < cut.bias.size(); ++r)
        EXPECT_EQ(cut.bias[r], keeps_bias ? whole.bias[r] : 0);
    }
  }
}

}  // namespace
}  // namespace moracle::cut_test
