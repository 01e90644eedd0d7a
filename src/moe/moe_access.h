// Experts on activations that are quantized already, for the library's own source folders.
#pragma once

#include "moracle/moe.h"
#include "quant/rows.h"

namespace moracle {

struct MoeAccess {
  /// The form in which the layer's kernels read its input: dtype, columns and scales of one row. No
  /// memory. Empty if the layer needs its input as the caller has it: floats, stored scales,
  /// weights on the input, adapters.
  static Rows input_form(const FusedMoe& moe);
  /// The same layer with the experts of another map, in the workspace of `old`. Experts that `old`
  /// has are copied, where the host sees the device's memory; the others are read. Errors: as
  /// FusedMoe::make; adapters.
  static Result<FusedMoe> make_moved(DescribedWeights&& weights, const Selection& selection,
                                     const FusedMoe& old);
  /// FusedMoe::apply to input in that form, with the same bits. Requires a form. No fused kernel
  /// runs.
  static Status apply(FusedMoe& moe, const Rows& input, TopkIds topk_ids, TopkWeights topk_weights,
                      const Matrix& output, Stream stream);
  /// FusedMoe::apply_rows, likewise.
  static Status apply_rows(FusedMoe& moe, const Rows& input, TopkIds topk_ids,
                           TopkWeights topk_weights, const Matrix& rows, Stream stream);

 private:
  static Status run(FusedMoe& moe, const Rows& input, TopkIds topk_ids, const float* topk_weights,
                    const Matrix& output, Stream stream, bool each_slot);
};

}  // namespace moracle
