// The weighted sum of expert results from several ranks, with the bits of one process.
#pragma once

#include "kernels/ops.h"
#include "moracle/moe.h"

namespace moracle {

struct SlotSums {
  Matrix by_slot;    ///< [tokens * top_k, hidden_size]: unweighted result of each slot
  Matrix by_expert;  ///< the same rows, in one process's order
  RowPlan rows;      ///< of one process, which holds all experts
  size_t bytes = 0;

  /// Memory for `num_tokens` tokens of a layer. If `base` is null, only `bytes` is valid.
  static SlotSums carve(const LayerSpec& layer, int64_t num_tokens, DType dtype, std::byte* base);
  /// The weighted sum of by_slot's first tokens, as many as `output` has rows, in the order in
  /// which one process adds. `slots`: at least the number of ids that are not -1; later entries of
  /// rows.row_slot are not read, earlier ones must be rows of by_slot even without a slot.
  Status add(const LayerSpec& layer, TopkIds topk_ids, TopkWeights topk_weights, int64_t slots,
             const Matrix& output, Ops& ops, Stream stream) const;
};

}  // namespace moracle
