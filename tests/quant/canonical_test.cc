// Tests that reordered and stacked rows keep their values.
#include "quant/canonical.h"

#include <gtest/gtest.h>

#include "quant/codec.h"
#include "timing/random_matrix.h"

namespace moracle::canonical_test {
namespace {

std::vector<double> row_of(const CanonicalMatrix& matrix, int64_t r) {
  std::vector<double> values(matrix.k);
  dequantize_row(matrix, r, values.data());
  return values;
}

MatrixShape shape_of(const char* scheme, int64_t n) {
  return {.n = n, .k = 96, .key = parse_scheme(scheme)->weight, .bias = true};
}

constexpr const char* kSchemes[] = {"bf16", "int4-w4a16-g32-asym", "int4-w4a16-g32-asym-min",
                                    "int8-w8a16-g16-min"};

TEST(CanonicalMatrix, SubtractsMinimumFromScaledCode) {
  CanonicalMatrix m;
  m.n = 1;
  m.k = 4;
  m.key = {DType::kI8, per_group(2), false, false};
  m.key.minimums = true;
  m.storage = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{0xfc}};
  m.codes = m.storage;
  m.scales = {0.5f, 2};
  m.zero_points = {-8, 1};
  m.minimums = {0.25f, -3};
  EXPECT_EQ(row_of(m, 0), (std::vector<double>{4.25, 4.75, 7, -7}));
  m.group_index = {1, 0, 0, 1};
  EXPECT_EQ(row_of(m, 0), (std::vector<double>{3, 4.75, 5.25, -7}));
}

TEST(CanonicalMatrix, DeinterleavedRowsKeepTheirValues) {
  for (const char* scheme : kSchemes) {
    const CanonicalMatrix before = timing::random_matrix(shape_of(scheme, 6), 1);
    CanonicalMatrix after = timing::random_matrix(shape_of(scheme, 6), 1);
    deinterleave_rows(after);
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_EQ(row_of(after, r), row_of(before, 2 * r)) << scheme;
      EXPECT_EQ(row_of(after, 3 + r), row_of(before, 2 * r + 1)) << scheme;
    }
  }
}

TEST(CanonicalMatrix, StackedRowsKeepTheirValues) {
  for (const char* scheme : kSchemes) {
    const CanonicalMatrix slices[] = {timing::random_matrix(shape_of(scheme, 2), 1),
                                      timing::random_matrix(shape_of(scheme, 3), 2)};
    CanonicalMatrix whole;
    whole.n = 5;
    whole.k = 96;
    whole.key = slices[0].key;
    whole.storage.resize(whole.n * whole.row_bytes());
    whole.codes = whole.storage;
    stack_rows(whole, 0, slices[0]);
    stack_rows(whole, 2, slices[1]);
    for (int64_t r = 0; r < 5; ++r)
      EXPECT_EQ(row_of(whole, r), r < 2 ? row_of(slices[0], r) : row_of(slices[1], r - 2))
          << scheme;
  }
}

}  // namespace
}  // namespace moracle::canonical_test
