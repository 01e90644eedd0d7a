// The prepare stage: activations as a grouped linear reads them, whatever they come as.
#pragma once

#include "base/text.h"
#include "base/try.h"
#include "kernels/grouped_linear.h"
#include "kernels/ops.h"
#include "oracle/workspace.h"

namespace moracle {

/// `x` (of the device's activation dtype) quantized dynamically as the scheme says, or with its
/// columns padded, or as it is where it already fits.
inline Result<Rows> prepare(const Matrix& x, const std::optional<QuantKey>& key,
                            const Rows& scratch, Ops& ops, Stream stream) {
  const Rows to = scratch.first(x.rows);
  if (key) {
    MORACLE_CHECK(ops.quantize(x, *key, to, stream));
    return to;
  }
  if (x.dtype == to.values.dtype && x.cols == to.values.cols) return Rows{x, nullptr, 0};
  MORACLE_CHECK(ops.convert(x, to.values, stream));
  return to;
}

/// `rows` with their columns in the order of the packed weights, in `scratch`, or as they are where
/// the plan gathers nothing and `scratch` has no rows.
inline Result<GroupedRows> gather(const GroupedRows& rows, const KernelWeights& weights,
                                  const Rows& scratch, Ops& ops, Stream stream) {
  if (scratch.values.rows == 0) return rows;
  const Rows to = scratch.first(rows.num_rows);
  MORACLE_CHECK(ops.gather_columns(rows, weights.column_orders(), to, stream));
  return GroupedRows{to, nullptr, rows.expert_offsets, rows.num_rows, rows.first_row};
}

}  // namespace moracle
