// All-gather of the tokens of all ranks, this rank's experts on them, reduce-scatter of the sums.
// Sizes are fixed and the host reads no counts, so a graph can record it.
#pragma once

#include "moracle/moe.h"
#include "moracle/parallel.h"
#include "parallel/expert_copies.h"

namespace moracle {

class GatheredExperts {
 public:
  /// The arguments outlive it.
  GatheredExperts(Group& group, Exchange& exchange, Device& device)
      : group_(group), exchange_(exchange), device_(device) {}

  /// As AllToAllExperts::run for equally many tokens on each rank; unused tokens have ids of -1.
  /// Tokens are quantized as there, except for kernels that fuse a whole layer. More tokens than
  /// the plan's max_num_tokens divided by the ranks run in chunks.
  Status run(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden, TopkIds topk_ids,
             TopkWeights topk_weights, const Matrix& output, Stream stream);
  /// Device memory for a layer with this plan.
  static int64_t memory_bytes(const Plan& plan);

 private:
  Group& group_;
  Exchange& exchange_;
  Device& device_;
  Buffer memory_;  // of the largest layer so far
};

}  // namespace moracle
