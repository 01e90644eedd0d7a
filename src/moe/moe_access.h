// Experts on activations that are quantized already, for the library's own source folders.
#pragma once

#include "kernels/fused_experts.h"
#include "moracle/moe.h"
#include "quant/rows.h"

namespace moracle {

/// A call of experts whose tokens arrived sorted: `num_tokens[e]` rows of local expert e from row
/// e * expert_rows of `rows` on.
struct ArrivedBatch {
  Rows rows;  ///< in the form of MoeAccess::batch_form
  const int32_t* num_tokens = nullptr;
  int64_t expert_rows = 0;
  RowPlan plan;    ///< memory for it, with a slot_row for each of `rows`
  Matrix results;  ///< as many rows as may arrive, one after another
};

/// A call of experts for the tokens of all ranks.
struct GatheredCall {
  Rows input;  ///< in MoeAccess::call_form; as the caller has them where that has no columns
  TopkIds topk_ids;
  TopkWeights topk_weights;
  Matrix output;     ///< [tokens, hidden_size]; not written if `add` adds the rows
  AddRows add = {};  ///< requires MoeAccess::leaves_rows; empty: Ops::combine
};

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
  /// The form in which an ArrivedBatch holds its rows: of input_form, or as the caller has them. No
  /// memory. Errors: a layer whose experts need more than their rows, with the reason.
  static Result<Rows> batch_form(const FusedMoe& moe);
  /// The unweighted results of the rows that arrived. No fused kernel runs. Works with the plan of
  /// FusedMoe::apply, unlike apply_batched, whose scratch has a row for each slot.
  static Status apply_batch(FusedMoe& moe, const ArrivedBatch& batch, Stream stream);
  /// The form in which a call for so many tokens takes its input: input_form, or that of kernels
  /// that fuse the layer.
  static Rows call_form(const FusedMoe& moe, int64_t num_tokens);
  /// Brings tokens to the form of a call for `num_tokens`. Requires a form, and rows without gaps
  /// that begin at 16 bytes.
  static Status prepare(FusedMoe& moe, const Matrix& x, int64_t num_tokens, const Rows& to,
                        Stream stream);
  /// True if a kernel of its own adds the rows of experts.
  static bool leaves_rows(const FusedMoe& moe);
  /// FusedMoe::apply, with the same bits, if `add` adds as Ops::combine does.
  static Status apply(FusedMoe& moe, const GatheredCall& call, Stream stream);
  /// FusedMoe::apply_rows, likewise.
  static Status apply_rows(FusedMoe& moe, const Rows& input, TopkIds topk_ids,
                           TopkWeights topk_weights, const Matrix& rows, Stream stream);

 private:
  static Status run(FusedMoe& moe, const Rows& input, TopkIds topk_ids, const float* topk_weights,
                    const Matrix& output, Stream stream, bool each_slot);
};

}  // namespace moracle
