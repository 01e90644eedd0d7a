// Shared code of Granite's families: factors of config.json, experts and the shared MLP.
#pragma once

#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_families.h"

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

inline constexpr GgufKey kGraniteGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_intermediate_size", false},
    {"attention.scale", "attention_multiplier"},
    {"embedding_scale", "embedding_multiplier", false},
    {"residual_scale", "residual_multiplier", false},
    {"logit_scale", "logits_scaling"},
};
inline constexpr GgufTensor kGraniteGgufTensors[] = {
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.block_sparse_moe.router.layer"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj",
     "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.down_proj"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.shared_mlp.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.shared_mlp.down_proj"},
};
/// For writing: gate and up of shared_mlp apart, as GGUF has them.
void split_granite_shared_mlp(GgufDraft& draft);

}  // namespace moracle
