// The part of a layer after attention: routed experts or a dense MLP. Some models add a shared
// expert that every token uses.
#pragma once

#include "kernels/ops.h"
#include "models/decoder/on_part.h"
#include "models/loader.h"

namespace moracle {

/// Activations that the layers share, for max_num_tokens.
struct FeedForwardScratch {
  Matrix logits;  ///< [tokens, largest num_experts of any layer]
  Matrix shared;  ///< [tokens, hidden_size]; no columns if no layer has a shared expert
  int32_t* topk_ids = nullptr;      ///< [tokens, largest top_k]
  float* topk_weights = nullptr;    ///< likewise
  int32_t* first_expert = nullptr;  ///< [tokens], all 0
  float* weight_one = nullptr;      ///< [tokens], all 1
  int32_t* lora_ids = nullptr;      ///< [tokens], read if a layer has adapters
  size_t bytes = 0;
};
FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base);

/// Experts with their router, or one expert that every token uses with weight 1.
class MoeStage {
 public:
  /// Call at first and whenever the weights change.
  Status load(std::optional<DescribedMatrix>&& router, const std::vector<float>& correction_bias,
              DescribedWeights&& experts, Loader& loader);
  bool loaded() const { return experts_.has_value(); }
  bool has_router() const { return router_.has_value(); }
  /// x, out [tokens, hidden_size]; x and out must not overlap. `norm`: computes x first, which is
  /// its output; `out` may be its y. Null: x is there.
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const OnPart& on_part = {}, const AddRmsNorm* norm = nullptr);

 private:
  std::optional<AdaptedLinear> router_;
  Buffer correction_bias_;  // empty: none
  std::optional<FusedMoe> experts_;
};

struct FeedForward {
  MoeStage routed;
  std::optional<MoeStage> shared;

  /// As in MoeStage. Errors: a reload adds or removes a shared expert or a router.
  Status load(LayerDescription&& layer, Loader& loader);
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const OnPart& on_part = {}, const AddRmsNorm* norm = nullptr);
};

}  // namespace moracle
