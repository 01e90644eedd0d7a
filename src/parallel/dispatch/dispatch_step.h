// One step of ranks that have their own tokens. The layers of a model share it, with its memory.
#pragma once

#include "parallel/dispatch/all_to_all_experts.h"
#include "parallel/dispatch/gathered_experts.h"

namespace moracle {

class DispatchStep {
 public:
  /// The arguments outlive it. `same_bits`: see AllToAllExperts.
  DispatchStep(Group& group, Exchange& exchange, Device& device, bool same_bits);

  /// Waits until every rank begins the step. `rests`: this rank has no more tokens. Returns false
  /// if all ranks rest.
  Result<bool> begin(int64_t num_tokens, bool rests);
  /// The largest number of tokens of a rank in this step.
  int64_t most_tokens() const { return most_tokens_; }
  /// True if run_experts() uses GatheredExperts, so that a graph can record it.
  bool gathers() const { return gathers_; }
  /// A layer's experts for the tokens of all ranks. `hidden` and `output` have the rows of this
  /// rank's tokens; their memory and that of `topk_ids` and `topk_weights` hold most_tokens(). Ids
  /// past the tokens become -1 where gathers().
  Status run_experts(FusedMoe& moe, const ExpertCopies& copies, const Matrix& hidden,
                     int32_t* topk_ids, const float* topk_weights, const Matrix& output,
                     Stream stream);

 private:
  // Sets `count` ids to -1.
  Status clear_ids(const Plan& plan, int32_t* ids, int64_t count, Stream stream);

  Group& group_;
  Device& device_;
  const bool gathers_;
  AllToAllExperts all_to_all_;
  GatheredExperts gathered_;
  int64_t most_tokens_ = 0;
  Buffer no_ids_;  // all -1
};

}  // namespace moracle
