// Tests act-order for layouts that store columns sorted by group.
#include "layout/sorted_columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/conformance.h"
#include "quant/codec.h"

namespace moracle::sorted_columns_test {
namespace {

using ::testing::HasSubstr;

class SortedColumns : public ::testing::TestWithParam<MatrixShape> {};

TEST_P(SortedColumns, HoldSameValuesSortedByGroup) {
  CanonicalMatrix matrix = conformance::random_matrix(GetParam(), 1);
  conformance::shuffle_groups(matrix, 2);
  const Result<CanonicalMatrix> result = sort_columns(matrix);
  ASSERT_TRUE(result) << result.error().to_string();
  CanonicalMatrix sorted = conformance::random_matrix(GetParam(), 3);
  sorted.codes = result->codes;
  sorted.scales = result->scales;
  sorted.minimums = result->minimums;
  sorted.zero_points = result->zero_points;  // and no group_index: column c is of group c / cols
  const std::vector<int32_t>& order = result->group_index;
  ASSERT_EQ(order.size(), static_cast<size_t>(matrix.k));
  std::vector<double> before(matrix.k), after(matrix.k);
  for (int64_t r = 0; r < matrix.n; ++r) {
    dequantize_row(matrix, r, before.data());
    dequantize_row(sorted, r, after.data());
    for (int64_t c = 0; c < matrix.k; ++c)
      ASSERT_EQ(after[c], before[order[c]]) << "row " << r << ", column " << c;
  }
  std::vector<int32_t> columns = order;
  std::sort(columns.begin(), columns.end());
  for (int64_t c = 0; c < matrix.k; ++c) ASSERT_EQ(columns[c], c);
  EXPECT_EQ(result->bias, matrix.bias);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, SortedColumns,
    ::testing::Values(MatrixShape{3, 128, int4_static_group(32), true, true},
                      MatrixShape{4, 96, parse_scheme("int8-w8a16-g32-min")->weight, true},
                      MatrixShape{3, 77, {DType::kI4, per_group(32), false, false}, true},
                      MatrixShape{5, 65, {DType::kI8, per_group(16), false, false}, true, true}),
    [](const auto& tested) {
      return std::string(name(tested.param.key.dtype)) + "x" + std::to_string(tested.param.k);
    });

// No column order places groups of other sizes where a kernel expects them.
TEST(SortedColumns, RejectGroupsOfUnevenSizes) {
  CanonicalMatrix matrix = conformance::random_matrix({2, 64, int4_static_group(32), true}, 1);
  conformance::shuffle_groups(matrix, 2);
  *std::find(matrix.group_index.begin(), matrix.group_index.end(), 0) = 1;
  const Result<CanonicalMatrix> sorted = sort_columns(matrix);
  ASSERT_FALSE(sorted);
  EXPECT_EQ(sorted.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(sorted.error().need, HasSubstr("32 columns in group 0"));
  EXPECT_EQ(sorted.error().fact, "it has 31");
}

}  // namespace
}  // namespace moracle::sorted_columns_test
