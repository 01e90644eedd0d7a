// Shared code of Granite's families: factors of config.json, experts and the shared MLP.
#pragma once

#include "models/families/decoder_family.h"
#include "models/families/family.h"

namespace moracle {

struct GraniteFactors {
  float residual = 1;        ///< multiplies the outputs of attention and of the feed-forward
  float logits_divisor = 1;  ///< divides the logits
  float attention = 1;       ///< multiplies the scores of attention
};
/// Reads them, and the embedding's into `decoder`. Errors: a factor that is not above 0.
Result<GraniteFactors> read_granite_factors(const Config& config, DecoderSpec& decoder);
void divide_granite_logits(Description& description, const GraniteFactors& factors);

/// Describes `layer`shared_mlp.
Result<DescribedWeights> describe_granite_shared_mlp(const Checkpoint& checkpoint,
                                                     const std::string& layer,
                                                     const DecoderSpec& spec, int64_t intermediate);

inline constexpr ExpertNames kGraniteExperts[] = {{.experts = "model.layers.{L}.block_sparse_moe",
                                                   .up = "input_linear.weight",
                                                   .down = "output_linear.weight",
                                                   .fused = true}};
inline constexpr const char* kGraniteSizeKeys[] = {"intermediate_size"};

}  // namespace moracle
