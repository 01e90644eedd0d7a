// The experts of a layer on several ranks that have the same tokens: each rank runs its experts,
// then an all-reduce sums the results.
#pragma once

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "moracle/placement.h"
#include "parallel/expert_copies.h"

namespace moracle {

/// The layers of a model share it.
struct ReplicatedMoe {
  Exchange* exchange = nullptr;
  /// The bits of one process: the all-reduce is over the unweighted result of each slot, and every
  /// rank takes the weighted sum in one process's order. Sends top_k times the bytes.
  bool same_bits = false;
  std::byte* scratch = nullptr;  ///< scratch_bytes() of the largest layer; only for same_bits
  Device* device = nullptr;

  /// The ids that this rank serves.
  Result<TopkIds> served(const ExpertCopies& copies, const LayerSpec& layer, int32_t* own_ids,
                         int64_t num_tokens, TopkIds topk_ids, Stream stream) const;

  /// FusedMoe::apply, over the experts of all ranks. `output` has the plan's activation dtype and
  /// no gaps. `own_ids`: memory like `topk_ids`, used where experts have copies.
  Status apply(FusedMoe& moe, const ExpertCopies& copies, int32_t* own_ids, const Matrix& hidden,
               TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output, Stream stream,
               LoraIds lora_ids) const;
  /// The same for experts of which each rank has some in slots. Without same_bits.
  Status apply(PlacedMoe& moe, const ExpertCopies& copies, int32_t* own_ids, const Matrix& hidden,
               TopkIds topk_ids, TopkWeights topk_weights, const Matrix& output, Stream stream,
               LoraIds lora_ids) const;
  static size_t scratch_bytes(const LayerSpec& layer, int64_t max_num_tokens, DType activation);
};

}  // namespace moracle
