// All stages of a layer's experts at once, for backends that have kernels for it.
#pragma once

#include <functional>

#include "kernels/ops.h"
#include "oracle/workspace.h"

namespace moracle {

/// Enqueues what adds the rows of each token, weighted.
using AddRows = std::function<Status(const ExpertRows& rows)>;

/// One apply of standard activations.
struct ExpertsCall {
  Matrix x;                             ///< [num_tokens, hidden_size], activation dtype of the plan
  const int32_t* topk_ids = nullptr;    ///< [num_tokens, top_k]
  const float* topk_weights = nullptr;  ///< [num_tokens, top_k]; null: each is 1
  const int32_t* expert_map = nullptr;  ///< [num_experts]; null: ids are local numbers
  Matrix output;                        ///< [num_tokens, hidden_size], activation dtype
  const Rows* prepared = nullptr;       ///< x in prepared_form; x is then only counted
  AddRows add = {};                     ///< instead of Ops::combine to `output`; empty: that
};

/// Prepares, runs both GEMMs and combines, from the ids on: what Ops::plan_rows, GroupedLinear and
/// Ops::combine do together. Ids that are not valid are reported as by plan_rows.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;
  /// True if this kernel runs calls of so many tokens, as planned.
  virtual bool serves(int64_t num_tokens) const = 0;
  /// Enqueues. Requires serves of its number of tokens.
  virtual Status run(const ExpertsCall& call, const MoeScratch& scratch, Stream stream) = 0;
  /// The form to which `run` brings the activations of so many tokens: codes of one row. No memory.
  /// No columns: it takes them as they are.
  virtual Rows prepared_form(int64_t) const { return {}; }
  /// Brings tokens to that form, for a call for `num_tokens` tokens, perhaps on another rank.
  /// Requires a form, and whole vectors of 16 bytes in x.
  virtual Status prepare(const Matrix& x, int64_t num_tokens, const Rows& to, Stream stream);
};

}  // namespace moracle
