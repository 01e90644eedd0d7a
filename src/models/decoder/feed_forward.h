// The feed-forward of a layer: routed experts or a dense MLP. Some models add a shared expert that
// every token uses, or add experts to a dense MLP, each with its own norms before and after.
#pragma once

#include "kernels/ops.h"
#include "models/decoder/layer_input.h"
#include "models/loader.h"
#include "parallel/dispatch/dispatch_step.h"
#include "parallel/replicated_moe.h"

namespace moracle {

/// Activations that the layers share, for max_num_tokens.
struct FeedForwardScratch {
  Matrix logits;    ///< [tokens, largest num_experts of any layer]
  Matrix shared;    ///< [tokens, hidden_size]; no columns if no layer has a shared expert
  Matrix normed;    ///< likewise, if no layer has experts beside an MLP or identity experts
  Matrix shortcut;  ///< likewise, if no layer begins a shortcut: its experts' output
  Matrix latent, latent_out;        ///< [tokens, largest latent size]: input and output of experts
  int32_t* topk_ids = nullptr;      ///< [tokens, largest top_k]
  float* topk_weights = nullptr;    ///< likewise
  int32_t* own_ids = nullptr;       ///< likewise; see ReplicatedMoe
  int32_t* first_expert = nullptr;  ///< [tokens], all 0
  float* weight_one = nullptr;      ///< [tokens], all 1
  float* identity = nullptr;        ///< [tokens]: the weight of a token's identity experts
  int32_t* lora_ids = nullptr;      ///< [tokens], read if a layer has adapters
  const int32_t* token_ids = nullptr;    ///< [tokens] of this step, for hash layers
  const ReplicatedMoe* ranks = nullptr;  ///< sums routed experts over ranks; null: one process
  DispatchStep* dispatch = nullptr;      ///< of ranks with their own tokens; null: there are none
  Exchange* divided = nullptr;           ///< tensor parallelism of dense MLPs; null: they are whole
  bool count_tokens = false;  ///< for MoeStage::tokens_per_expert, on a device of the host
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
  bool loaded() const { return experts_.has_value() || placed_.has_value(); }
  bool has_router() const { return router_.has_value(); }
  /// out [tokens, hidden_size]. Input and out must not overlap; `out` may be the y of the input's
  /// norm.
  Status apply(LayerInput input, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const StepObserver& observer = {});
  /// The two halves of apply, for a router and experts with different inputs. route() computes the
  /// input; without a router it does no more.
  Status route(LayerInput input, const FeedForwardScratch& scratch, Ops& ops, Stream stream,
               const StepObserver& observer = {});
  Status run_experts(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                     Stream stream);
  /// The ranks of each expert, for FeedForwardScratch::ranks and ::dispatch. Every rank calls it.
  /// Errors: as ExpertCopies::gather.
  Status find_copies(Group& group, bool one_each, Device& device);
  /// For benchmarks: calls with at most these choices take them instead of the router's, [tokens,
  /// top_k], in stream order. A recorded call reads those of its replay.
  Status force(std::span<const int32_t> topk_ids, Device& device);
  /// The experts, which all lie on the device.
  const FusedMoe& experts() const { return *experts_; }
  /// Those in host memory and in slots; null: all lie on the device.
  PlacedMoe* placed() { return placed_ ? &*placed_ : nullptr; }
  const PlacedMoe* placed() const { return placed_ ? &*placed_ : nullptr; }
  /// The ranks of each expert; empty before find_copies().
  const ExpertCopies& copies() const { return copies_; }
  /// Replaces the experts by those of another map.
  void replace(FusedMoe&& experts, ExpertCopies&& copies) {
    experts_ = std::move(experts);
    copies_ = std::move(copies);
  }
  /// The tokens that chose each expert since the last reset.
  std::vector<int64_t> tokens_per_expert() const;
  void reset_tokens() { tokens_.clear(); }

 private:
  void count(const int32_t* topk_ids, int64_t slots);
  /// out += the weight of identity experts · x, of the tokens that route() has routed.
  Status add_identity(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch,
                      Ops& ops, Stream stream);
  const LayerSpec& layer() const {
    return placed_ ? placed_->host_plan().layer : experts_->plan().layer;
  }

  std::vector<int64_t> tokens_;  // by expert; empty: none yet
  ExpertCopies copies_;          // empty: this process has all experts
  std::optional<AdaptedLinear> router_;
  Buffer correction_bias_, expert_scales_;  // empty: none
  Buffer by_token_;                         // see TokenRoutes; empty: the scores choose
  int64_t num_identity_ = 0;                // see RouterDescription
  Buffer forced_;                           // ids; empty: the router chooses
  Device* forced_on_ = nullptr;
  std::optional<FusedMoe> experts_;  // or
  std::optional<PlacedMoe> placed_;
};

/// Norms of experts that are added to a dense MLP.
struct BesideMlpNorms {
  Buffer router, experts, experts_output, mlp_output;
  float epsilon = 0;
};

struct FeedForward {
  MoeStage routed;
  std::optional<MoeStage> shared;
  std::optional<BesideMlpNorms> beside_mlp;
  std::optional<AdaptedLinear> latent_down, latent_up;  ///< see LatentExpertsDescription
  int64_t latent_size = 0;
  Shortcut shortcut = Shortcut::kNone;

  /// As in MoeStage. Errors: a reload adds or removes a shared expert or a router.
  Status load(LayerDescription&& layer, float norm_epsilon, Loader& loader);
  /// `residual`: the residual stream that `input` normalizes; router and experts beside an MLP read
  /// norms of their own of it.
  Status apply(LayerInput input, const Matrix& residual, const Matrix& out,
               const FeedForwardScratch& scratch, Ops& ops, Stream stream,
               const StepObserver& observer);
  /// A step of a rank without tokens: its experts run for the other ranks' tokens. `x` and `out`
  /// are the rows of apply.
  Status run_experts_of_others(const Matrix& x, const Matrix& out,
                               const FeedForwardScratch& scratch, Stream stream);

 private:
  // Input and output of latent experts.
  std::pair<Matrix, Matrix> latent_rows(const FeedForwardScratch& scratch, int64_t rows) const;
  Status apply_latent(LayerInput input, const Matrix& out, const FeedForwardScratch& scratch,
                      Ops& ops, Stream stream, const StepObserver& observer);
  Status apply_beside_mlp(const Matrix& residual, const Matrix& out,
                          const FeedForwardScratch& scratch, Ops& ops, Stream stream,
                          const StepObserver& observer);
};

}  // namespace moracle
