// Tests reordering activation columns into the order of the expert's packed weights.
#include "kernels/gather_cases.h"

#include "kernels/cpu_ops_test.h"

namespace moracle::gather_test {
namespace {

class GatherColumns : public CpuOpsTest {};

TEST_P(GatherColumns, ReordersColumnsByExpertOfRow) {
  for (const GatherCase& c : gather_cases()) {
    SCOPED_TRACE(c.name);
    GatherData data = make_gather_data(c, random_);
    const Rows from{{data.from.data(), c.dtype, c.source_rows, c.cols, c.cols},
                    data.from_scales.data(),
                    c.num_scales};
    const Rows to{{data.to.data(), c.dtype, c.rows, c.padded_cols, c.padded_cols},
                  data.to_scales.data(),
                  c.num_scales};
    const GroupedRows rows{from, c.indexed ? data.row_index.data() : nullptr,
                           c.num_experts > 1 ? data.offsets.data() : nullptr, c.rows, c.first_row};
    const ColumnOrders orders{reinterpret_cast<const std::byte*>(data.orders.data()),
                              data.order_stride(), c.cols, c.num_experts};
    const Status done = ops_.gather_columns(rows, orders, to, {});
    ASSERT_TRUE(done) << done.error().to_string();
    EXPECT_EQ(data.to, data.expected);
    EXPECT_EQ(data.to_scales, data.expected_scales);
  }
}

TEST_P(GatherColumns, RejectsFourBitValues) {
  uint8_t byte = 0;
  const Rows rows{{&byte, DType::kI4, 1, 2, 2}, nullptr, 0};
  EXPECT_FALSE(ops_.gather_columns({rows, nullptr, nullptr, 1}, {nullptr, 0, 2, 1}, rows, {}));
}

INSTANTIATE_TEST_SUITE_P(Threads, GatherColumns, ::testing::Values(1, 3));

}  // namespace
}  // namespace moracle::gather_test
