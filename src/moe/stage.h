// The prepare stage: converts activations to the form that a grouped linear reads.
#pragma once

#include "base/text.h"
#include "base/try.h"
#include "kernels/grouped_linear.h"
#include "kernels/ops.h"
#include "oracle/workspace.h"

namespace moracle {

/// Quantizes `x` (of the device's activation dtype) dynamically if the scheme says so. Otherwise
/// pads its columns, or returns `x` unchanged if it already fits.
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

/// Reorders the columns of `rows` to match the packed weights, into `scratch`. Returns `rows`
/// unchanged if the plan gathers nothing and `scratch` has no rows.
inline Result<GroupedRows> gather(const GroupedRows& rows, const KernelWeights& weights,
                                  const Rows& scratch, Ops& ops, Stream stream) {
  if (scratch.values.rows == 0) return rows;
  const Rows to = scratch.first(rows.num_rows);
  MORACLE_CHECK(ops.gather_columns(rows, weights.column_orders(), to, stream));
  return GroupedRows{to, nullptr, rows.expert_offsets, rows.num_rows, rows.first_row};
}

}  // namespace moracle
