// Gathers activation columns into the order of their expert's packed weights.
#include "base/text.h"
#include "kernels/opencl/device/launch_elements.h"
#include "kernels/opencl/ops/opencl_ops.h"

namespace moracle {
namespace opencl::ops_gather {
namespace {

const KernelName kGather8{"ops/gather.cl", "gather_columns_8"};
const KernelName kGather16{"ops/gather.cl", "gather_columns_16"};
const KernelName kGather32{"ops/gather.cl", "gather_columns_32"};

/// Null: no kernel moves values of this size.
const KernelName* kernel_for(int bits) {
  switch (bits) {
    case 8:
      return &kGather8;
    case 16:
      return &kGather16;
    case 32:
      return &kGather32;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace opencl::ops_gather

Status OpenClOps::gather_columns(const GroupedRows& rows, const ColumnOrders& orders,
                                 const Rows& to, Stream stream) {
  const opencl::KernelName* const kernel = opencl::ops_gather::kernel_for(bits(to.values.dtype));
  if (kernel == nullptr) {
    return Error{ErrorKind::kUnsupported, "", "gather_columns", "values of 8, 16 or 32 bits",
                 str("they are ", name(to.values.dtype))};
  }
  return opencl::launch_elements(queue_, stream, *kernel, rows.num_rows, to.values.cols,
                                 rows.x.values, rows.x.scales, rows.row_index, rows.expert_offsets,
                                 rows.first_row, orders.first, orders.stride, orders.num_cols,
                                 orders.num_experts, to.values, to.scales, to.num_scales,
                                 rows.num_rows, to.values.cols);
}

}  // namespace moracle
