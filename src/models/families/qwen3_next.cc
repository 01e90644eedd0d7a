// Qwen3-Next: gated DeltaNet and gated attention. The projections of gated DeltaNet are stored key
// head by key head. The layers for multi-token prediction are not run.
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/hybrid_moe.h"

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
  delta.by_key_head = true;
  const DeltaModules modules{{"in_proj_qkvz"},
                             {"in_proj_ba"},
                             {delta.mixed() + delta.values()},
                             {2 * delta.num_value_heads}};
  return describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
    return describe_hybrid_layer(checkpoint, spec, layer, modules);
  });
}

}  // namespace
}  // namespace qwen3_next

constinit const Family kQwen3NextFamily = {
    .architecture = "Qwen3NextForCausalLM",
    .models = "Qwen3-Next",
    .notes = "without multi-token prediction",
    .describe = qwen3_next::describe,
    .experts = {.defaults = qwen3_next::kDefaults, .score = Score::kSoftmax}};

}  // namespace moracle
