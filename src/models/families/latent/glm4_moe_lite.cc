// GLM-4.7-Flash: DeepSeek-V3's layers, of which mlp_layer_types may say which are dense.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"

namespace moracle {
namespace glm4_moe_lite {
namespace {

// The defaults of transformers' Glm4MoeLiteConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
  "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
  "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank": 512,
  "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
  "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
  "hidden_act": "silu", "max_position_embeddings": 202752, "rms_norm_eps": 1e-05,
  "tie_word_embeddings": false, "rope_interleave": true, "attention_bias": false,
  "rope_theta": 10000.0, "first_k_dense_replace": 1
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, checkpoint.num_layers(), moe));
  MORACLE_CHECK(check_dense_layers(config, moe));
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor"}));
  return describe_latent_decoder(checkpoint, decoder, attention, moe);
}

// Files of this model are read as DeepSeek-V3, whose architecture they have.
bool never(const Config&, const Tensors&) {
  return false;
}
constexpr GgufConvention kGguf[] = {{.architecture = "deepseek2",
                                     .keys = kLatentGgufKeys,
                                     .tensors = kLatentGgufTensors,
                                     .usual_heads = false,
                                     .applies = never,
                                     .write = write_latent_gguf}};

}  // namespace
}  // namespace glm4_moe_lite

constinit const Family kGlm4MoeLiteFamily = {.architecture = "Glm4MoeLiteForCausalLM",
                                             .models = "GLM-4.7-Flash",
                                             .notes = "multi-token prediction drafts",
                                             .describe = glm4_moe_lite::describe,
                                             .experts = {.defaults = glm4_moe_lite::kDefaults,
                                                         .score = Score::kSigmoid,
                                                         .gguf = glm4_moe_lite::kGguf}};

}  // namespace moracle
