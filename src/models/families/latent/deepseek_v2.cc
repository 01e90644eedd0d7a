// DeepSeek-V2 and -V2-Lite: MLA, dense first layers, softmax routing over all experts or over the
// best groups, whose rank is their best expert; shared experts.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace deepseek_v2 {
namespace {

// The defaults of transformers' DeepseekV2Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts": 64,
  "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": false,
  "v_head_dim": 128, "moe_intermediate_size": 1407, "rope_theta": 10000.0
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // The routing depends on model_type.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "deepseek_v2") return config.wrong({"model_type"}, "deepseek_v2", "it is " + type);
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(LatentSpec attention, read_latent(config));
  attention.rotary.interleaved = true;  // transformers ignores rope_interleave
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  moe.correction_bias = false;
  MORACLE_TRY(const std::string method, config.text({"topk_method"}));
  if (method == "group_limited_greedy") {
    MORACLE_CHECK(require_keys(config, {"n_group", "topk_group"}));
  } else if (method != "greedy") {
    return config.unsupported({"topk_method"}, "greedy or group_limited_greedy", "it is " + method);
  }
  MORACLE_CHECK(require_score(config, "softmax"));
  // transformers ignores norm_topk_prob, the authors' code drops the scaling factor with it.
  MORACLE_TRY(const bool renormalize, config.boolean_or(false, {"norm_topk_prob"}));
  if (renormalize) return config.unsupported({"norm_topk_prob"}, "false", "it is true");
  return describe_latent_decoder(checkpoint, decoder, attention, moe);
}

// Sigmoid routing is DeepSeek-V3's. Older files do not tell the function; V2 has no correction
// bias.
bool is_softmax(const Config& metadata, const Tensors& stored) {
  const nlohmann::json* const gating = metadata.find({"deepseek2.expert_gating_func"});
  if (gating != nullptr) return *gating == 1;
  return !has_stored(stored, ".exp_probs_b.bias");
}
Status finish_gguf(GgufModel& model) {
  const bool grouped = model.config.contains("n_group") && model.config["n_group"] != 1;
  model.config["topk_method"] = grouped ? "group_limited_greedy" : "greedy";
  return finish_deepseek(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_softmax_gating(draft));
  return put_latent(draft);
}
constexpr GgufConvention kGguf[] = {{.architecture = "deepseek2",
                                     .keys = kLatentGgufKeys,
                                     .tensors = kLatentGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"model_type": "deepseek_v2",
  "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": false})",
                                     .applies = is_softmax,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace deepseek_v2

constinit const Family kDeepseekV2Family = {
    .architecture = "DeepseekV2ForCausalLM",
    .models = "DeepSeek-V2, V2-Lite",
    .describe = deepseek_v2::describe,
    .experts = {.defaults = deepseek_v2::kDefaults, .gguf = deepseek_v2::kGguf}};

}  // namespace moracle
