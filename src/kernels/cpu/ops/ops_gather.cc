// Reorders columns of activations to match their expert's packed weights.
#include <algorithm>

#include "base/text.h"
#include "kernels/cpu/ops/cpu_ops.h"

namespace moracle {
namespace {

template <class Value>
void gather_row(const std::byte* from, const int32_t* order, int64_t num_cols, int64_t all_cols,
                std::byte* to) {
  const auto* values = reinterpret_cast<const Value*>(from);
  auto* out = reinterpret_cast<Value*>(to);
  for (int64_t c = 0; c < num_cols; ++c) out[c] = values[order[c]];
  std::fill(out + num_cols, out + all_cols, Value{});
}

}  // namespace

Status CpuOps::gather_columns(const GroupedRows& rows, const ColumnOrders& orders, const Rows& to,
                              Stream) {
  const Matrix &from = rows.x.values, &out = to.values;
  const int64_t size = bits(from.dtype) / 8, scales = to.num_scales;
  if (size != 1 && size != 2 && size != 4) {
    return Error{ErrorKind::kUnsupported, "", "gather_columns", "values of 8, 16 or 32 bits",
                 str("they are ", name(from.dtype))};
  }
  const auto gather = size == 1   ? gather_row<uint8_t>
                      : size == 2 ? gather_row<uint16_t>
                                  : gather_row<uint32_t>;
  const int32_t* const offsets = rows.expert_offsets;
  split_rows(rows.num_rows, out.cols, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = rows.first_row + i;
      int64_t expert = 0;
      if (offsets != nullptr)
        expert = std::upper_bound(offsets, offsets + orders.num_experts + 1, row) - offsets - 1;
      if (expert >= orders.num_experts) break;  // rows past the last offset have no expert
      const int64_t source = rows.row_index != nullptr ? rows.row_index[row] : i;
      gather(static_cast<const std::byte*>(from.data) + source * from.stride * size,
             orders.of(expert), orders.num_cols, out.cols,
             static_cast<std::byte*>(out.data) + i * out.stride * size);
      std::copy_n(rows.x.scales + source * scales, scales, to.scales + i * scales);
    }
  });
  return {};
}

}  // namespace moracle
