// What follows attention in a layer: the experts that tokens are routed to, or a dense MLP, and
// with some models an expert that every token goes to.
#pragma once

#include "kernels/ops.h"
#include "models/decoder/on_part.h"
#include "models/loader.h"

namespace moracle {

/// Activations that the layers share, for max_num_tokens.
struct FeedForwardScratch {
  Matrix logits;  ///< [tokens, most experts of any layer]
  Matrix shared;  ///< [tokens, hidden_size]; no columns where no layer has a shared expert
  int32_t* topk_ids = nullptr;      ///< [tokens, largest top_k]
  float* topk_weights = nullptr;    ///< likewise
  int32_t* first_expert = nullptr;  ///< [tokens], all 0
  float* weight_one = nullptr;      ///< [tokens], all 1
  int32_t* lora_ids = nullptr;      ///< [tokens], read where a layer has adapters
  size_t bytes = 0;
};
FeedForwardScratch carve_feed_forward(const Description& description, int64_t max_num_tokens,
                                      DType dtype, std::byte* base);

/// Experts with their router, or one expert that every token goes to with weight 1.
class MoeStage {
 public:
  /// The first time and whenever the weights change.
  Status load(std::optional<DescribedMatrix>&& router, const std::vector<float>& correction_bias,
              DescribedWeights&& experts, Loader& loader);
  bool loaded() const { return experts_.has_value(); }
  bool has_router() const { return router_.has_value(); }
  /// x, out [tokens, hidden_size]; they may not overlap.
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const OnPart& on_part = {});

 private:
  std::optional<Linear> router_;
  Buffer correction_bias_;  // empty: none
  std::optional<FusedMoe> experts_;
};

struct FeedForward {
  MoeStage routed;
  std::optional<MoeStage> shared;

  /// As MoeStage's. Errors: a shared expert or a router where there was none, and none where there
  /// was one.
  Status load(LayerDescription&& layer, Loader& loader);
  Status apply(const Matrix& x, const Matrix& out, const FeedForwardScratch& scratch, Ops& ops,
               Stream stream, const OnPart& on_part = {});
};

}  // namespace moracle
