// Tests reordering activation columns into the order of the expert's packed weights on every
// device.
#include "kernels/ops/gather_cases.h"

#include "kernels/ops/device_ops.h"

namespace moracle::gather_test {
namespace {

class GatherColumns : public testing::DeviceOpsTest {};

TEST_P(GatherColumns, ReordersColumnsByExpertOfRow) {
  for (const GatherCase& c : gather_cases()) {
    SCOPED_TRACE(c.name);
    const GatherData data = make_gather_data(c, random_);
    const Rows from{{upload(data.from), c.dtype, c.source_rows, c.cols, c.cols},
                    upload(data.from_scales),
                    c.num_scales};
    std::byte* const out = upload(data.to);
    float* const out_scales = upload(data.to_scales);
    const Rows to{{out, c.dtype, c.rows, c.padded_cols, c.padded_cols}, out_scales, c.num_scales};
    const GroupedRows rows{from, c.indexed ? upload(data.row_index) : nullptr,
                           c.num_experts > 1 ? upload(data.offsets) : nullptr, c.rows, c.first_row};
    const ColumnOrders orders{reinterpret_cast<const std::byte*>(upload(data.orders)),
                              data.order_stride(), c.cols, c.num_experts};
    expect_done(ops().gather_columns(rows, orders, to, {}));
    EXPECT_EQ(download(out, static_cast<int64_t>(data.to.size())), data.expected);
    EXPECT_EQ(download(out_scales, static_cast<int64_t>(data.to_scales.size())),
              data.expected_scales);
  }
}

TEST_P(GatherColumns, RejectsFourBitValues) {
  const Rows rows{{upload(std::vector<uint8_t>{0}), DType::kI4, 1, 2, 2}, nullptr, 0};
  EXPECT_FALSE(ops().gather_columns({rows, nullptr, nullptr, 1}, {nullptr, 0, 2, 1}, rows, {}));
}

MORACLE_ON_EVERY_DEVICE(GatherColumns);

}  // namespace
}  // namespace moracle::gather_test
