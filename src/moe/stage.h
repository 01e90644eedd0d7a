// The prepare stage: activations as a grouped linear reads them, whatever they come as.
#pragma once

#include "kernels/grouped_linear.h"
#include "kernels/ops.h"
#include "moe/carve.h"

namespace moracle {

/// Room for the input of one grouped linear: codes and scales where the scheme quantizes activations,
/// else floats with the columns that its layout reads.
struct InputRoom {
  Matrix values;
  float* scales = nullptr;

  static InputRoom take(Carver& carver, const KernelWeights& weights, DType activation_dtype,
                        int64_t rows) {
    const int64_t cols = weights.layout->read_cols(weights.shape);
    InputRoom room;
    if (weights.scheme.activation) {
      room.values = carver.take_matrix(weights.scheme.activation->dtype, rows, cols);
      room.scales = carver.take<float>(rows);
    } else {
      room.values = carver.take_matrix(activation_dtype, rows, cols);
    }
    return room;
  }
};

/// `x` quantized as the scheme says (it must be of the activation dtype then), converted, or as it is
/// where it already fits.
inline Result<Rows> prepare(const Matrix& x, const KernelWeights& weights, const InputRoom& room,
                            DType activation_dtype, Ops& ops, Stream stream) {
  const Matrix to = room.values.slice(0, x.rows);
  if (weights.scheme.activation) {
    Status done = ops.quantize(x, *weights.scheme.activation, to, room.scales, stream);
    if (!done) return done.error();
    return Rows{to, room.scales};
  }
  if (x.dtype == activation_dtype && x.cols == to.cols) return Rows{x, nullptr};
  Status done = ops.convert(x, to, stream);
  if (!done) return done.error();
  return Rows{to, nullptr};
}

}  // namespace moracle
