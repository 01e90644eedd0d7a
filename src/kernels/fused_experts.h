// A call of a layer's experts, and kernels that run all of its stages at once.
#pragma once

#include <functional>

#include "kernels/ops.h"
#include "oracle/workspace.h"

namespace moracle {

/// Enqueues what adds the rows of each token, weighted.
using AddRows = std::function<Status(const ExpertRows& rows)>;

/// One call of a layer's experts: what goes in, which expert takes each row, and what comes out.
struct ExpertsCall {
  enum class Input {
    kTokens,    ///< floats as the caller has them
    kReady,     ///< as GEMM 1 reads them (ready_form); no fused kernel runs
    kPrepared,  ///< as the kernels for this number of tokens read them (MoeAccess::prepare)
  };
  enum class Routing { kIds, kCounts };
  enum class Output {
    kTokens,  ///< [num_tokens, hidden_size]: the weighted sum of each token
    kSlots,   ///< [num_tokens * top_k, hidden_size]: unweighted, without a fused kernel
  };

  Rows input;
  Input form = Input::kTokens;
  const int32_t* lora_ids = nullptr;  ///< [rows of input]; null: no adapters

  Routing routing = Routing::kIds;
  const int32_t* topk_ids = nullptr;           ///< kIds: [num_tokens, top_k]
  const float* topk_weights = nullptr;         ///< likewise; null: each is 1
  const int32_t* expert_num_tokens = nullptr;  ///< kCounts: [num_local]
  int64_t expert_rows = 0;  ///< kCounts: rows of local expert e begin at row e * expert_rows

  Matrix output = {};
  Output result = Output::kTokens;
  AddRows add = {};  ///< adds the rows of tokens instead; requires that GEMM 2 does not

  int64_t num_tokens() const { return input.values.rows; }  ///< one row of input each
};

/// Prepares, runs both GEMMs and combines, from the ids on: what Ops::plan_rows, GroupedLinear and
/// Ops::combine do together. Ids that are not valid are reported as by plan_rows.
class FusedExperts {
 public:
  virtual ~FusedExperts() = default;
  /// True if this kernel runs calls of so many tokens, as planned.
  virtual bool serves(int64_t num_tokens) const = 0;
  /// Enqueues. Requires ids, serves of the number of tokens, tokens of the activation dtype, and
  /// Output::kTokens. `expert_map` [num_experts]; null: ids are local numbers.
  virtual Status run(const ExpertsCall& call, const int32_t* expert_map, const MoeScratch& scratch,
                     Stream stream) = 0;
  /// The form to which `run` brings the activations of so many tokens: codes of one row. No memory.
  /// No columns: it takes them as they are.
  virtual Rows prepared_form(int64_t) const { return {}; }
  /// Brings tokens to that form, for a call for `num_tokens` tokens, perhaps on another rank.
  /// Requires a form, and whole vectors of 16 bytes in x.
  virtual Status prepare(const Matrix& x, int64_t num_tokens, const Rows& to, Stream stream);
};

}  // namespace moracle
