// DeepSeek-V3 (and R1), Kimi-K2 and its successors: MLA, dense first layers, sigmoid routing by
// groups with a correction bias, shared experts. The layer for multi-token prediction only drafts.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace deepseek_v3 {
namespace {

// The defaults of transformers' DeepseekV3Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
  "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
  "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
  "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
  "first_k_dense_replace": 3, "norm_topk_prob": true, "hidden_act": "silu",
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // The routing depends on model_type.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "deepseek_v3" && type != "kimi_k2")
    return config.wrong({"model_type"}, "deepseek_v3 or kimi_k2", "it is " + type);
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  // DeepSeek-V2 chose its experts by other rules.
  MORACLE_TRY(const std::string method, config.text_or("noaux_tc", {"topk_method"}));
  if (method != "noaux_tc")
    return config.unsupported({"topk_method"}, "noaux_tc", "it is " + method);
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  return describe_latent_decoder(checkpoint, decoder, attention, moe);
}

// The same files as DeepSeek-V2's. GLM-4.7-Flash and Kimi-K2 are among them, too.
bool is_sigmoid(const Config& metadata, const Tensors& stored) {
  const nlohmann::json* const gating = metadata.find({"deepseek2.expert_gating_func"});
  if (gating != nullptr) return *gating == 2;
  return has_stored(stored, ".exp_probs_b.bias");
}
Status finish_gguf(GgufModel& model) {
  // Files from before October 2025 lack groups, which of these models DeepSeek-V3 and R1 have.
  const bool v3 = model.config["num_hidden_layers"] == 61 && model.config["num_experts"] == 256;
  if (!model.config.contains("n_group"))
    model.config.update({{"n_group", v3 ? 8 : 1}, {"topk_group", v3 ? 4 : 1}});
  return finish_deepseek(model);
}
constexpr GgufConvention kGguf[] = {{.architecture = "deepseek2",
                                     .keys = kLatentGgufKeys,
                                     .tensors = kLatentGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"model_type": "deepseek_v3",
  "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": false})",
                                     .applies = is_sigmoid,
                                     .finish = finish_gguf,
                                     .write = write_latent_gguf}};

}  // namespace
}  // namespace deepseek_v3

constinit const Family kDeepseekV3Family = {.architecture = "DeepseekV3ForCausalLM",
                                            .multimodal = "KimiK25ForConditionalGeneration",
                                            .models = "DeepSeek-V3, R1, Kimi-K2, K2.5, K2.6, K2.7",
                                            .notes = "text only; multi-token prediction drafts",
                                            .describe = deepseek_v3::describe,
                                            .experts = {.defaults = deepseek_v3::kDefaults,
                                                        .default_score = Score::kSigmoid,
                                                        .gguf = deepseek_v3::kGguf}};

}  // namespace moracle
