// Layers as DeepSeek has them: the first ones are dense, the others have routed experts beside
// shared ones.
#pragma once

#include "models/families/decoder_family.h"
#include "models/gguf/gguf_families.h"

namespace moracle {

struct SharedMoeSpec {
  int64_t dense_layers = 0;  ///< layers before the first one with experts
  int64_t sparse_step = 1;   ///< experts are in every so many layers
  int64_t dense_intermediate = 0;
  int64_t shared_intermediate = 0;  ///< 0: no shared expert
  bool correction_bias = true;      ///< the router must have one
  /// Its name, with {L} for the layer; empty: the gate's e_score_correction_bias.
  std::string_view bias_name = {};
  const char *router = "gate", *shared = "shared_experts";  ///< below mlp.
  std::vector<bool> dense = {};  ///< by layer; empty: as the numbers above say
  bool is_dense(int64_t layer) const {
    // A layer for multi-token prediction comes behind those of the list.
    if (!dense.empty())
      return static_cast<size_t>(layer) < dense.size() && dense[static_cast<size_t>(layer)];
    return layer < dense_layers || layer % sparse_step != 0;
  }
};

/// Reads the sizes under DeepSeek's keys. Errors: missing or invalid values (kBadFile).
Result<SharedMoeSpec> read_shared_moe(const Config& config);
/// Reads mlp_layer_types, if it is there, which counts before the numbers. Errors: not one type for
/// each layer; other types than dense and sparse.
Status read_mlp_layer_types(const Config& config, int64_t num_layers, SharedMoeSpec& spec);
/// Errors: first_k_dense_replace is in config.json and says other dense layers than
/// mlp_layer_types. transformers ignores it then.
Status check_dense_layers(const Config& config, const SharedMoeSpec& spec);
/// Errors: one of the keys is null, or missing without a default.
Status require_keys(const Config& config, std::initializer_list<const char*> keys);

/// Errors: scoring_func names another function than `score`, which transformers always computes.
Status require_score(const Config& config, const std::string& score);

/// Describes the norms, the MLP or the experts of the layer, and adds `attention`.
Result<LayerDescription> describe_shared_moe_layer(const Checkpoint& checkpoint,
                                                   const DecoderSpec& decoder,
                                                   const SharedMoeSpec& spec, int64_t layer,
                                                   AttentionDescription&& attention);

inline constexpr GgufKey kSharedMoeGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "n_shared_experts"},
    {"leading_dense_block_count", "first_k_dense_replace", false},
    {"expert_weights_scale", "routed_scaling_factor", false},
    {"expert_weights_norm", "norm_topk_prob", false},
    {"expert_group_count", "n_group", false},
    {"expert_group_used_count", "topk_group", false},
};
inline constexpr GgufTensor kSharedMoeGgufTensors[] = {
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_experts.down_proj"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.gate.e_score_correction_bias"},
};
/// GLM-4.5's architecture, which Solar-Open's files have, too.
inline constexpr GgufKey kGlmMoeOwnGgufKeys[] = {
    {"attention.key_length", "head_dim"},
    {"rope.dimension_count", "partial_rotary_factor"},  // until the family divides it
};
inline constexpr auto kGlmMoeGgufKeys = joined(kSharedMoeGgufKeys, kGlmMoeOwnGgufKeys);
inline constexpr GgufTensor kGlmMoeOwnGgufTensors[] = {
    {"blk.{L}.post_attention_norm", "model.layers.{L}.post_attention_layernorm"},
};
inline constexpr auto kGlmMoeGgufTensors = joined(kSharedMoeGgufTensors, kGlmMoeOwnGgufTensors);
Status write_glm_moe_gguf(GgufDraft& draft);
/// The meaning of missing keys of kSharedMoeGgufKeys in GGUF.
inline constexpr std::string_view kSharedMoeGgufConstants = R"({
  "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": false, "n_group": 1,
  "topk_group": 1})";

}  // namespace moracle
