// Decoders with MLA and layers as DeepSeek has them.
#pragma once

#include "models/families/shared_moe.h"

namespace moracle {

/// Reads the sizes of MLA. Errors: missing or invalid values (kBadFile); other rotary embeddings.
Result<LatentSpec> read_latent(const Config& config);

/// The two steps of read_latent: sizes, then RoPE and the scale of scores. `rotates` false: no
/// column has RoPE.
Result<LatentSpec> read_latent_sizes(const Config& config, bool rotates = true);
Status set_rotary(const Config& config, RotaryAndScale&& read, LatentSpec& spec);

/// Describes `prefix`{q,q_a,q_b,kv_a,kv_b}_proj…, its norms and, with head_gate, `gate_name`.
/// `biased`: the layers that read or write the hidden state have biases.
Result<LatentDescription> describe_latent(const Checkpoint& checkpoint, const std::string& prefix,
                                          const DecoderSpec& decoder, const LatentSpec& spec,
                                          bool biased, const char* o_name = "o_proj",
                                          const char* gate_name = "g_proj");

/// Describes the whole model. Layers for multi-token prediction are not run.
Result<Description> describe_latent_decoder(const Checkpoint& checkpoint,
                                            const DecoderSpec& decoder, const LatentSpec& attention,
                                            const SharedMoeSpec& moe);

inline constexpr GgufKey kLatentGgufOwnKeys[] = {
    {"attention.kv_lora_rank", "kv_lora_rank"},
    {"rope.dimension_count", "qk_rope_head_dim"},
    {"attention.q_lora_rank", "q_lora_rank", false},
    {"rope.freq_base", "rope_theta", false},
    {"rope.scaling.type", "rope_scaling.rope_type", false},
    {"rope.scaling.factor", "rope_scaling.factor", false},
    {"rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings",
     false},
    {"rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", false},
    {"rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", false},
};
inline constexpr auto kLatentGgufKeys = joined(kSharedMoeGgufKeys, kLatentGgufOwnKeys);
inline constexpr GgufTensor kLatentGgufOwnTensors[] = {
    {"blk.{L}.attn_q_a", "model.layers.{L}.self_attn.q_a_proj"},
    {"blk.{L}.attn_q_a_norm", "model.layers.{L}.self_attn.q_a_layernorm"},
    {"blk.{L}.attn_q_b", "model.layers.{L}.self_attn.q_b_proj"},
    {"blk.{L}.attn_kv_a_mqa", "model.layers.{L}.self_attn.kv_a_proj_with_mqa"},
    {"blk.{L}.attn_kv_a_norm", "model.layers.{L}.self_attn.kv_a_layernorm"},
    {"blk.{L}.attn_kv_b", "model.layers.{L}.self_attn.kv_b_proj"},
};
inline constexpr auto kLatentGgufTensors = joined(kSharedMoeGgufTensors, kLatentGgufOwnTensors);

/// The keys of sigmoid routing, and those of MLA that the tables do not express.
Status write_latent_gguf(GgufDraft& draft);

}  // namespace moracle
