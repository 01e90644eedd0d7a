// Sarvam-105B: DeepSeek-V3's layers.
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"

namespace moracle {
namespace sarvam_mla {
namespace {

// The defaults of transformers' SarvamMLAConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 16384,
  "moe_intermediate_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 64,
  "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 2.5,
  "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
  "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1,
  "norm_topk_prob": true, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "rope_interleave": true,
  "attention_bias": false, "rope_theta": 10000.0
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  return describe_latent_decoder(checkpoint, decoder, attention, moe);
}

}  // namespace
}  // namespace sarvam_mla

constinit const Family kSarvamMlaFamily = {
    .architecture = "SarvamMLAForCausalLM",
    .saved_as = "DeepseekV3ForCausalLM",
    .model_type = "sarvam_mla",
    .models = "Sarvam-105B",
    .notes = "without multi-token prediction",
    .describe = sarvam_mla::describe,
    .experts = {.defaults = sarvam_mla::kDefaults, .score = Score::kSigmoid}};

}  // namespace moracle
