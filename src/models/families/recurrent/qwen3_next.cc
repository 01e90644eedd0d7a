// Qwen3-Next: gated DeltaNet and gated attention. The projections of gated DeltaNet are stored key
// head by key head. The layer for multi-token prediction only drafts.
#include <algorithm>

#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/recurrent/hybrid_moe.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace qwen3_next {
namespace {

// The defaults of transformers' Qwen3NextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 48,
  "num_attention_heads": 16, "num_key_value_heads": 2, "hidden_act": "silu",
  "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "attention_bias": false, "head_dim": 256, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "decoder_sparse_step": 1, "moe_intermediate_size": 512,
  "shared_expert_intermediate_size": 512, "num_experts_per_tok": 10, "num_experts": 512,
  "norm_topk_prob": true, "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
  "full_attention_interval": 4
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(HybridMoe spec, read_hybrid_moe(checkpoint.state().config, checkpoint.num_layers()));
  GatedDeltaSpec& delta = spec.delta;
  // GGUF files have the projections apart.
  const auto& all = checkpoint.state().tensors.all();
  delta.by_key_head = std::none_of(all.begin(), all.end(), [](const auto& tensor) {
    return tensor.first.ends_with("linear_attn.in_proj_z.weight");
  });
  const DeltaModules apart{{"in_proj_qkv", "in_proj_z"},
                           {"in_proj_b", "in_proj_a"},
                           {delta.mixed(), delta.values()},
                           {delta.num_value_heads, delta.num_value_heads}};
  const DeltaModules whole{{"in_proj_qkvz"},
                           {"in_proj_ba"},
                           {delta.mixed() + delta.values()},
                           {2 * delta.num_value_heads}};
  const DeltaModules& modules = delta.by_key_head ? whole : apart;
  return describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
    return describe_hybrid_layer(checkpoint, spec, layer, modules);
  });
}

constexpr GgufTensor kGgufTensors[] = {
    // Older files keep in_proj_qkvz whole.
    {"blk.{L}.ssm_in", "model.layers.{L}.linear_attn.in_proj_qkvz"},
    {"blk.{L}.ssm_ba", "model.layers.{L}.linear_attn.in_proj_b",
     "model.layers.{L}.linear_attn.in_proj_a"},
};
constexpr auto kAllGgufTensors = joined(kHybridGgufTensors, kGgufTensors);
// llama.cpp always renormalizes the weights of this architecture.
constexpr GgufConvention kGguf[] = {{.architecture = "qwen3next",
                                     .keys = kHybridGgufKeys,
                                     .tensors = kAllGgufTensors,
                                     .constants = R"({"norm_topk_prob": true})",
                                     .finish = finish_hybrid_gguf,
                                     .write = write_hybrid_gguf}};

}  // namespace
}  // namespace qwen3_next

constinit const Family kQwen3NextFamily = {
    .architecture = "Qwen3NextForCausalLM",
    .models = "Qwen3-Next",
    .notes = "multi-token prediction drafts",
    .describe = qwen3_next::describe,
    .experts = {
        .defaults = qwen3_next::kDefaults, .score = Score::kSoftmax, .gguf = qwen3_next::kGguf}};

}  // namespace moracle
