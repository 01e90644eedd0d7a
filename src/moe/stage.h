// The prepare stage: activations as a grouped linear reads them, whatever they come as.
#pragma once

#include "base/try.h"
#include "kernels/grouped_linear.h"
#include "kernels/ops.h"
#include "moe/carve.h"
#include "quant/activation.h"

namespace moracle {

/// Stored activation scales belong to experts, so rows are quantized after they have been grouped.
inline bool is_static(const KernelWeights& weights) {
  return weights.scheme.activation && !weights.scheme.activation->dynamic;
}

/// Room for the input of one grouped linear, with the columns that its layout reads.
inline Rows take_rows(Carver& carver, const GroupedLinear& linear, int64_t rows) {
  const KernelWeights& weights = linear.weights();
  Rows room;
  room.values =
      carver.take_matrix(linear.input_dtype(), rows, weights.layout->read_cols(weights.shape));
  if (weights.scheme.activation) {
    room.num_scales = num_groups(*weights.scheme.activation, weights.shape.k);
    room.scales = carver.take<float>(rows * room.num_scales);
  }
  return room;
}

/// The first `count` rows.
inline Rows first_rows(const Rows& rows, int64_t count) {
  return {rows.values.slice(0, count), rows.scales, rows.num_scales};
}

/// `x` (of the device's activation dtype) quantized dynamically as the scheme says, or with its
/// columns padded, or as it is where it already fits.
inline Result<Rows> prepare(const Matrix& x, const GroupedLinear& linear, const Rows& room,
                            Ops& ops, Stream stream) {
  const auto& key = linear.weights().scheme.activation;
  const Rows to = first_rows(room, x.rows);
  if (key) {
    MORACLE_CHECK(ops.quantize(x, *key, to, stream));
    return to;
  }
  if (x.dtype == to.values.dtype && x.cols == to.values.cols) return Rows{x, nullptr, 0};
  MORACLE_CHECK(ops.convert(x, to.values, stream));
  return to;
}

}  // namespace moracle
