// Qwen2-MoE (and Qwen1.5-MoE): like Qwen3-MoE, but with biases on q, k and v instead of norms on q
// and k. Adds a shared expert, which each token weights by a sigmoid.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace qwen2_moe {
namespace {

// The defaults of transformers' Qwen2MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
  "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
  "decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
  "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true,
  "rope_theta": 10000.0
})";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer) {
  const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
  MORACLE_TRY(const bool biased, checkpoint.state().config.boolean_or(false, {"qkv_bias"}));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased}));
  return describe_qwen_layer(checkpoint, spec, layer, std::move(attention), true);
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const int64_t window, read_sliding_window(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, window == 0));
  MORACLE_TRY(const int64_t windowed, config.integer({"max_window_layers"}, 0));
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, checkpoint.num_layers(),
                           [&](int64_t layer) { return layer % 2 == 0 && layer < windowed; }));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    heads.window = windows[static_cast<size_t>(layer)];
    return describe_layer(checkpoint, spec, heads, layer);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_expert.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_expert.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_expert.down_proj"},
    {"blk.{L}.ffn_gate_inp_shexp", "model.layers.{L}.mlp.shared_expert_gate"},
};
Status finish_gguf(GgufModel& model) {
  restore_gate_row(model);
  return {};
}
// llama.cpp never renormalizes the weights of this architecture.
constexpr GgufConvention kGguf[] = {{.architecture = "qwen2moe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = R"({"norm_topk_prob": false})",
                                     .finish = finish_gguf}};

}  // namespace
}  // namespace qwen2_moe

constinit const Family kQwen2MoeFamily = {
    .architecture = "Qwen2MoeForCausalLM",
    .models = "Qwen1.5-MoE, Qwen2-MoE",
    .describe = qwen2_moe::describe,
    .experts = {.defaults = qwen2_moe::kDefaults, .gguf = qwen2_moe::kGguf}};

}  // namespace moracle
