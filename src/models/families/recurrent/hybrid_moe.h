// Qwen3-Next and Qwen3.5-MoE: most layers are gated DeltaNet, the others attention with gates.
// Experts beside a shared expert with a gate of its own.
#pragma once

#include "models/families/decoder_family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {

struct HybridMoe {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  GatedDeltaSpec delta;
  std::vector<bool> is_delta;  ///< by layer
  bool biased = false;         ///< q, k, v and o
};

/// Reads the sizes. Errors: missing or invalid values (kBadFile); other kinds of layers.
/// `also`: another name of layers with attention.
Result<HybridMoe> read_hybrid_moe(const Config& config, int64_t num_layers,
                                  const char* also = "full_attention");

/// Describes the layer. `qkvz` and `ba` are the modules of gated DeltaNet, with their rows.
struct DeltaModules {
  std::vector<std::string> qkvz, ba;
  std::vector<int64_t> qkvz_rows, ba_rows;
};
Result<AttentionDescription> describe_hybrid_attention(const Checkpoint& checkpoint,
                                                       const HybridMoe& spec, int64_t layer,
                                                       const DeltaModules& modules);
Result<LayerDescription> describe_hybrid_layer(const Checkpoint& checkpoint, const HybridMoe& spec,
                                               int64_t layer, const DeltaModules& modules);

inline constexpr GgufKey kHybridGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
    {"attention.key_length", "head_dim"},
    {"rope.dimension_count", "partial_rotary_factor"},  // until finish_hybrid_gguf divides it
    {"ssm.conv_kernel", "linear_conv_kernel_dim"},
    {"ssm.state_size", "linear_key_head_dim"},
    {"ssm.group_count", "linear_num_key_heads"},
    {"ssm.time_step_rank", "linear_num_value_heads"},
    {"ssm.inner_size", "linear_value_head_dim"},  // likewise
    {"full_attention_interval", "full_attention_interval", false},
};
inline constexpr GgufTensor kHybridGgufTensors[] = {
    {"output_norm", "model.norm", {}, subtract_one, add_one},
    {"blk.{L}.attn_norm", "model.layers.{L}.input_layernorm", {}, subtract_one, add_one},
    {"blk.{L}.post_attention_norm",
     "model.layers.{L}.post_attention_layernorm",
     {},
     subtract_one,
     add_one},
    {"blk.{L}.attn_q_norm", "model.layers.{L}.self_attn.q_norm", {}, subtract_one, add_one},
    {"blk.{L}.attn_k_norm", "model.layers.{L}.self_attn.k_norm", {}, subtract_one, add_one},
    {"blk.{L}.nextn.enorm", "model.layers.{L}.enorm", {}, subtract_one, add_one},
    {"blk.{L}.nextn.hnorm", "model.layers.{L}.hnorm", {}, subtract_one, add_one},
    {"blk.{L}.nextn.shared_head_norm",
     "model.layers.{L}.shared_head.norm",
     {},
     subtract_one,
     add_one},
    {"blk.{L}.attn_qkv", "model.layers.{L}.linear_attn.in_proj_qkv"},
    {"blk.{L}.attn_gate", "model.layers.{L}.linear_attn.in_proj_z"},
    {"blk.{L}.ssm_a", "model.layers.{L}.linear_attn.A_log", {}, decay_logarithm, negative_decay},
    {"blk.{L}.ssm_dt.bias", "model.layers.{L}.linear_attn.dt_bias"},
    {"blk.{L}.ssm_conv1d", "model.layers.{L}.linear_attn.conv1d"},
    {"blk.{L}.ssm_norm", "model.layers.{L}.linear_attn.norm"},
    {"blk.{L}.ssm_out", "model.layers.{L}.linear_attn.out_proj"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_expert.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_expert.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_expert.down_proj"},
    {"blk.{L}.ffn_gate_inp_shexp", "model.layers.{L}.mlp.shared_expert_gate"},
};
Status finish_hybrid_gguf(GgufModel& model);
Status write_hybrid_gguf(GgufDraft& draft);

}  // namespace moracle
