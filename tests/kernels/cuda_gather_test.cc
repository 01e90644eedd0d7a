// Tests reordering columns into the order of the expert's packed weights, on a GPU.
#include "kernels/cuda_test.h"
#include "kernels/gather_cases.h"

namespace moracle::cuda_gather_test {
namespace {

class CudaGatherColumns : public CudaTest {};

TEST_F(CudaGatherColumns, ReordersColumnsByExpertOfRow) {
  std::mt19937 random(42);
  for (const GatherCase& c : gather_cases()) {
    SCOPED_TRACE(c.name);
    const GatherData data = make_gather_data(c, random);
    const Buffer from = upload(data.from), to = upload(data.to), orders = upload(data.orders),
                 from_scales = upload(data.from_scales), to_scales = upload(data.to_scales),
                 row_index = upload(data.row_index), offsets = upload(data.offsets);
    const Rows source{{from.data(), c.dtype, c.source_rows, c.cols, c.cols},
                      from_scales.as<float>(),
                      c.num_scales};
    const Rows room{{to.data(), c.dtype, c.rows, c.padded_cols, c.padded_cols},
                    to_scales.as<float>(),
                    c.num_scales};
    const GroupedRows rows{source, c.indexed ? row_index.as<int32_t>() : nullptr,
                           c.num_experts > 1 ? offsets.as<int32_t>() : nullptr, c.rows,
                           c.first_row};
    expect_done(device_->ops().gather_columns(
        rows, {orders.as<std::byte>(), data.order_stride(), c.cols, c.num_experts}, room, {}));
    EXPECT_EQ(download<std::byte>(to), data.expected);
    EXPECT_EQ(download<float>(to_scales), data.expected_scales);
  }
}

}  // namespace
}  // namespace moracle::cuda_gather_test
