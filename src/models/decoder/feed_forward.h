// The part of a layer after attention: routed experts or a dense MLP. Some models add a shared
// expert that every token uses, or put experts beside a dense MLP, each between norms of its own.
#pragma once

#include "kernels/ops.h"
#include "models/decoder/step_observer.h"
#include "models/loader.h"
#include "parallel/dispatch/dispatch.h"
#include "parallel/replicated_moe.h"

namespace moracle {

/// Activations that the layers share, for max_num_tokens.
struct FeedForwardScratch {
  Matrix logits;  ///< [tokens, largest num_experts of any layer]
  Matrix shared;  ///< [tokens, hidden_size]; no columns if no layer has a shared expert
  Matrix normed;  ///< likewise, if no layer has experts beside an MLP
  int32_t* topk_ids = nullptr;           ///< [tokens, largest top_k]
  float* topk_weights = nullptr;         ///< likewise
  int32_t* own_ids = nullptr;            ///< likewise; see ReplicatedMoe
  int32_t* first_expert = nullptr;       ///< [tokens], all 0
  float* weight_one = nullptr;           ///< [tokens], all 1
  int32_t* lora_ids = nullptr;           ///< [tokens], read if a layer has adapters
  const ReplicatedMoe* ranks = nullptr;  ///< where routed experts are summed; null: nowhere
  Dispatch* dispatch = nullptr;          ///< sends tokens to routed experts; null: they stay
  Exchange* divided = nullptr;  ///< sums shares of dense MLPs and shared experts; null: whole ones
  bool count_tokens = false;    ///< for MoeStage::tokens_per_expert, on a device of the host
  size_t bytes = 0;
};
FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base);

/// Experts with their router, or one expert that every token uses with weight 1.
class MoeStage {
 public:
  /// Call at first and whenever the weights change.
  Status load(std::optional<RouterDescription>&& router, DescribedWeights&& experts,
              Loader& loader);
  bool loaded() const { return experts_.has_value(); }
  bool has_router() const { return router_.has_value(); }
  /// x, out [tokens, hidden_size]; x and out must not overlap. `norm`: computes x first, which is
  /// its output; `out` may be its y. Null: x is there.
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const StepObserver& observer = {}, const AddRmsNorm* norm = nullptr);
  /// The two halves of apply, for a router and experts with different inputs. Without a router,
  /// route() only computes x if `norm` says so.
  Status route(const Matrix& x, const FeedForwardScratch& scratch, Ops& ops, Stream stream,
               const StepObserver& observer = {}, const AddRmsNorm* norm = nullptr);
  Status run_experts(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                     Stream stream);
  /// The ranks of each expert, for FeedForwardScratch::ranks and ::dispatch. Every rank calls it.
  /// Errors: as ExpertCopies::gather.
  Status find_copies(Group& group, bool one_each, Device& device);
  /// Dispatch::prepare, after find_copies. Every rank calls it.
  Status prepare(Dispatch& dispatch) { return dispatch.prepare(*experts_, copies_); }
  const FusedMoe& experts() const { return *experts_; }
  /// The ranks of each expert; of no experts before find_copies().
  const ExpertCopies& copies() const { return copies_; }
  /// Puts the layer with the experts of another map in the place of the old one.
  void replace(FusedMoe&& experts, ExpertCopies&& copies) {
    experts_ = std::move(experts);
    copies_ = std::move(copies);
  }
  /// The tokens that chose each expert since the last reset.
  std::vector<int64_t> tokens_per_expert() const;
  void reset_tokens() { tokens_.clear(); }

 private:
  void count(const int32_t* topk_ids, int64_t slots);

  std::vector<int64_t> tokens_;  // by expert; empty: none yet
  ExpertCopies copies_;          // of no experts: this process has all
  std::optional<AdaptedLinear> router_;
  Buffer correction_bias_, expert_scales_;  // empty: none
  std::optional<FusedMoe> experts_;
};

/// Norms around experts that stand beside a dense MLP.
struct BesideMlpNorms {
  Buffer router, experts, experts_output, mlp_output;
  float epsilon = 0;
};

struct FeedForward {
  MoeStage routed;
  std::optional<MoeStage> shared;
  std::optional<BesideMlpNorms> beside_mlp;

  /// True if router and experts read the residual, not x.
  bool reads_residual() const { return beside_mlp.has_value(); }
  /// As in MoeStage. Errors: a reload adds or removes a shared expert or a router.
  Status load(LayerDescription&& layer, float norm_epsilon, Loader& loader);
  /// `residual`: where reads_residual(), which then takes no `norm`.
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const StepObserver& observer, const AddRmsNorm* norm,
               const Matrix& residual);

 private:
  Status apply_beside_mlp(const Matrix& residual, const Matrix& out,
                          const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                          const StepObserver& observer);
};

}  // namespace moracle
