// All stages of a layer's experts at once, for backends that have kernels for it.
#pragma once

#include "kernels/ops.h"
#include "oracle/workspace.h"

namespace moracle {

/// One apply of standard activations.
struct ExpertsCall {
  Matrix x;                             ///< [num_tokens, hidden_size], activation dtype of the plan
  const int32_t* topk_ids = nullptr;    ///< [num_tokens, top_k]
  const float* topk_weights = nullptr;  ///< [num_tokens, top_k]; null: each is 1
  const int32_t* expert_map = nullptr;  ///< [num_experts]; null: ids are local numbers
  Matrix output;                        ///< [num_tokens, hidden_size], activation dtype
};

/// Prepares, runs both GEMMs and combines, from the ids on: what Ops::plan_rows, GroupedLinear and
/// Ops::combine do together. Ids that are not valid are reported as by plan_rows.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;
  /// Enqueues. Requires a number of tokens that the plan's fused kernels serve.
  virtual Status run(const ExpertsCall& call, const MoeScratch& scratch, Stream stream) = 0;
};

}  // namespace moracle
