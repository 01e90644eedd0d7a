// Qwen3-MoE: per-head RMSNorm on q and k, RoPE, GQA, experts with softmax routing. Layers in
// mlp_only_layers, or off decoder_sparse_step, are dense. Qwen3-VL-MoE wraps such a model.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"

namespace moracle {
namespace qwen3_moe {
namespace {

// The defaults of transformers' Qwen3MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
  "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
  "decoder_sparse_step": 1, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
  "num_experts": 128, "norm_topk_prob": false, "rope_theta": 10000.0
})";

// The defaults of transformers' Qwen3VLMoeTextConfig.
constexpr std::string_view kWrappedDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
  "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
  "max_position_embeddings": 128000, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "attention_bias": false, "decoder_sparse_step": 1, "moe_intermediate_size": 1408,
  "num_experts_per_tok": 4, "num_experts": 60, "rope_theta": 500000.0
})";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer) {
  const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
  MORACLE_TRY(const bool biased, checkpoint.state().config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, spec, attention));
  return describe_qwen_layer(checkpoint, spec, layer, std::move(attention), false);
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const int64_t window, read_sliding_window(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, window == 0));
  heads.window = window;  // of every layer
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
};
// llama.cpp always renormalizes the weights of this architecture.
constexpr GgufConvention kGguf[] = {
    {.architecture = "qwen3moe",
     .keys = kGgufKeys,
     .constants = R"({"norm_topk_prob": true, "decoder_sparse_step": 1})"}};

Status write_wrapped_gguf(GgufDraft& draft) {
  put_rotary_sections(draft);
  return {};
}
constexpr GgufConvention kWrappedGguf[] = {{.architecture = "qwen3vlmoe",
                                            .keys = kGgufKeys,
                                            .constants = R"({"decoder_sparse_step": 1})",
                                            .write = write_wrapped_gguf}};

constexpr ExpertNames kWrappedNames[] = {
    {.experts = "model.layers.{L}.mlp.experts", .fused = true, .either_way = true}};

}  // namespace
}  // namespace qwen3_moe

constinit const Family kQwen3MoeFamily = {
    .architecture = "Qwen3MoeForCausalLM",
    .models = "Qwen3-MoE",
    .describe = qwen3_moe::describe,
    .experts = {.defaults = qwen3_moe::kDefaults, .gguf = qwen3_moe::kGguf}};
// The weights of the chosen experts always sum to one.
constinit const Family kQwen3VlMoeFamily = {.architecture = "Qwen3VLMoeForConditionalGeneration",
                                            .multimodal = "Qwen3VLMoeForConditionalGeneration",
                                            .models = "Qwen3-VL-MoE",
                                            .notes = "text only",
                                            .describe = qwen3_moe::describe,
                                            .experts = {.defaults = qwen3_moe::kWrappedDefaults,
                                                        .names = qwen3_moe::kWrappedNames,
                                                        .score = Score::kSoftmax,
                                                        .renormalize = true,
                                                        .renormalize_keys = {},
                                                        .gguf = qwen3_moe::kWrappedGguf}};

}  // namespace moracle
