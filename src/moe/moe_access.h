// A layer's experts for the library's own source folders: any ExpertsCall, and its forms of input.
#pragma once

#include "kernels/fused_experts.h"
#include "moracle/moe.h"

namespace moracle {

/// The form in which GEMM 1 reads its input: dtype, columns and scales of one row. No memory. Empty
/// if the layer needs its input as the caller has it: floats, stored scales, weights on the input,
/// adapters.
Rows ready_form(const Plan& plan);

struct MoeAccess {
  /// Enqueues a call, with the bits of FusedMoe::apply where the output is the same. Errors: those
  /// of FusedMoe::apply.
  static Status run(FusedMoe& moe, ExpertsCall call, Stream stream);
  /// The form of Input::kPrepared for a call for so many tokens: ready_form, or that of kernels
  /// that fuse the layer. Empty: the call takes Input::kTokens.
  static Rows prepared_form(const FusedMoe& moe, int64_t num_tokens);
  /// Brings tokens to the form of a call for `num_tokens`. Requires a form, and rows without gaps
  /// that begin at 16 bytes.
  static Status prepare(FusedMoe& moe, const Matrix& x, int64_t num_tokens, const Rows& to,
                        Stream stream);
  /// The same layer with the experts of another map, in the workspace of `old`. Experts that `old`
  /// has are copied, where the host sees the device's memory; the others are read. Errors: as
  /// FusedMoe::make; adapters.
  static Result<FusedMoe> make_moved(DescribedWeights&& weights, const Selection& selection,
                                     const FusedMoe& old);
};

}  // namespace moracle
