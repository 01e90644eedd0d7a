// Gathers activation columns into the order of their expert's packed weights.
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace moracle {
namespace cuda {
namespace {

template <class Value>
struct GatherColumns {
  GroupedRows rows;
  ColumnOrders orders;
  Rows to;

  __device__ void operator()(int64_t i, int64_t c) const {
    const int64_t row = rows.first_row + i;
    const int64_t expert = rows.expert_offsets != nullptr
                               ? expert_of(rows.expert_offsets, orders.num_experts, row)
                               : 0;
    if (expert >= orders.num_experts) return;  // rows past the last offset have no expert
    const int64_t source = rows.row_index != nullptr ? rows.row_index[row] : i;
    const Matrix &from = rows.x.values, &out = to.values;
    Value value{};
    if (c < orders.num_cols) {
      const auto* const order =
          reinterpret_cast<const int32_t*>(orders.first + expert * orders.stride);
      value = static_cast<const Value*>(from.data)[source * from.stride + order[c]];
    }
    static_cast<Value*>(out.data)[i * out.stride + c] = value;
    if (c < to.num_scales)
      to.scales[i * to.num_scales + c] = rows.x.scales[source * to.num_scales + c];
  }
};

}  // namespace
}  // namespace cuda

Status CudaOps::gather_columns(const GroupedRows& rows, const ColumnOrders& orders, const Rows& to,
                               Stream stream) {
  const auto gather = [&](auto each) {
    return cuda::launch_elements(queue_, stream, "gather_columns", rows.num_rows, to.values.cols,
                                 each);
  };
  switch (bits(to.values.dtype)) {
    case 8:
      return gather(cuda::GatherColumns<uint8_t>{rows, orders, to});
    case 16:
      return gather(cuda::GatherColumns<uint16_t>{rows, orders, to});
    case 32:
      return gather(cuda::GatherColumns<uint32_t>{rows, orders, to});
    default:
      return Error{ErrorKind::kUnsupported, "", "gather_columns", "values of 8, 16 or 32 bits",
                   str("they are ", name(to.values.dtype))};
  }
}

}  // namespace moracle
