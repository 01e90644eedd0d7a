// GLM-4.5, 4.6 and 4.7: GQA with RoPE on a part of each head and, if config.json says so, norms on
// q and k. Dense first layers, sigmoid routing with a correction bias, shared experts. The layer
// for multi-token prediction only drafts.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace glm4_moe {
namespace {

// The defaults of transformers' Glm4MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 151552, "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46,
  "num_attention_heads": 96, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "attention_bias": false, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
  "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1,
  "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": false,
  "rope_theta": 10000.0, "partial_rotary_factor": 0.5
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads,
              read_grouped_query(config, decoder, true, {.partial = true}));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const bool qk_norm, config.boolean_or(false, {"use_qk_norm"}));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, heads, {biased}));
    if (qk_norm) {
      MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
    }
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  };
  return describe_decoder(checkpoint, decoder, describe_layer);
}

Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(set_partial_rotary(model));
  set_attention_bias(model);
  model.config["use_qk_norm"] =
      gguf_has(model, ".attn_q_norm.weight") || gguf_has(model, ".attn_k_norm.weight");
  return {};
}
// Solar-Open's files, too: all of its layers have experts.
constexpr GgufConvention kGguf[] = {{.architecture = "glm4moe",
                                     .keys = kGlmMoeGgufKeys,
                                     .tensors = kGlmMoeGgufTensors,
                                     .constants = kSharedMoeGgufConstants,
                                     .finish = finish_gguf,
                                     .write = write_glm_moe_gguf}};

}  // namespace
}  // namespace glm4_moe

constinit const Family kGlm4MoeFamily = {
    .architecture = "Glm4MoeForCausalLM",
    .models = "GLM-4.5, 4.6, 4.7",
    .notes = "multi-token prediction drafts",
    .describe = glm4_moe::describe,
    .experts = {
        .defaults = glm4_moe::kDefaults, .score = Score::kSigmoid, .gguf = glm4_moe::kGguf}};

}  // namespace moracle
