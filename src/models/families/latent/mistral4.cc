// Mistral-Small-4: MLA whose RoPE settings count for whole heads. Softmax routing, by groups that
// their two best experts rank; shared experts. Queries are multiplied by a factor that grows with
// each original context before them.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent/latent_decoder.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace mistral4 {
namespace {

// The defaults of transformers' Mistral4Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 12288,
  "moe_intermediate_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 32,
  "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0,
  "kv_lora_rank": 256, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "qk_nope_head_dim": 64, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4,
  "first_k_dense_replace": 0, "norm_topk_prob": true, "hidden_act": "silu",
  "max_position_embeddings": 1048576, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "rope_interleave": true, "attention_bias": false,
  "rope_parameters": {
    "type": "yarn", "rope_theta": 10000.0, "factor": 128.0,
    "original_max_position_embeddings": 8192, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1, "rope_type": "yarn"
  }
})";

Status read_tempering(const Config& config, LatentSpec& spec) {
  MORACLE_TRY(const auto rope, rotary_settings(config));
  if (!rope || !rope->has({"llama_4_scaling_beta"})) return {};
  MORACLE_TRY(const double beta, rope->number({"llama_4_scaling_beta"}));
  if (!(beta >= 0 && beta <= 1e3)) {
    return rope->wrong({"llama_4_scaling_beta"}, "a number from 0 to 1000", str("it is ", beta));
  }
  if (beta == 0) return {};
  MORACLE_TRY(const int64_t original, rope->integer({"original_max_position_embeddings"}, 1));
  spec.temper_scale = static_cast<float>(original);
  spec.temper_strength = static_cast<float>(beta);
  return {};
}

Result<LatentSpec> read_attention(const Config& config) {
  MORACLE_TRY(LatentSpec spec, read_latent_sizes(config));
  const double part = static_cast<double>(spec.rope_dim) / static_cast<double>(spec.head_dim());
  MORACLE_TRY(RotaryAndScale read,
              read_rotary(config, spec.head_dim(), {.partial = true, .fraction = part}));
  if (static_cast<int64_t>(read.rotary.frequencies.size()) * 2 != spec.rope_dim) {
    return config.wrong({"rope_parameters"},
                        str("a partial_rotary_factor of qk_rope_head_dim, ", spec.rope_dim),
                        str("it rotates ", read.rotary.frequencies.size() * 2, " columns"));
  }
  MORACLE_CHECK(set_rotary(config, std::move(read), spec));
  MORACLE_CHECK(read_tempering(config, spec));
  return spec;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // Older models have the same wrapper for images.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "mistral4") return config.unsupported({"model_type"}, "mistral4", "it is " + type);
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const LatentSpec attention, read_attention(config));
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  moe.correction_bias = false;
  MORACLE_CHECK(require_keys(config, {"n_group", "topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(Description description,
              describe_latent_decoder(checkpoint, decoder, attention, moe));
  for (LayerDescription& layer : description.layers) {
    if (!layer.router || layer.mlp->spec.routing.num_groups == 1) continue;
    // A correction bias of 0 makes the two best experts rank a group.
    layer.mlp->spec.routing.correction_bias = true;
    layer.router->correction_bias.assign(static_cast<size_t>(layer.mlp->spec.num_experts), 0.0f);
  }
  return description;
}

constexpr GgufKey kGgufKeys[] = {
    {"attention.kv_lora_rank", "kv_lora_rank"},
    {"attention.q_lora_rank", "q_lora_rank", false},
    {"attention.temperature_scale", "rope_parameters.llama_4_scaling_beta", false},
    {"rope.dimension_count", "qk_rope_head_dim"},
    {"rope.freq_base", "rope_parameters.rope_theta"},
    {"rope.scaling.type", "rope_parameters.rope_type", false},
    {"rope.scaling.factor", "rope_parameters.factor", false},
    {"rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings",
     false},
    {"rope.scaling.yarn_beta_fast", "rope_parameters.beta_fast", false},
    {"rope.scaling.yarn_beta_slow", "rope_parameters.beta_slow", false},
};
constexpr auto kAllGgufKeys = joined(kSharedMoeGgufKeys, kGgufKeys);
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSoftmax));
  nlohmann::json& rope = model.config["rope_parameters"];
  if (!rope.contains("rope_type")) rope["rope_type"] = "default";
  // As in finish_deepseek.
  const std::string key = gguf_key(model, "rope.scaling.yarn_log_multiplier");
  MORACLE_TRY(const double multiplier, model.metadata.number_or(0, {key.c_str()}));
  if (multiplier != 0) rope["mscale"] = rope["mscale_all_dim"] = 10 * multiplier;
  return finish_deepseek(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_softmax_gating(draft));
  return put_latent(draft);
}
constexpr GgufConvention kGguf[] = {{.architecture = "mistral4",
                                     .keys = kAllGgufKeys,
                                     .tensors = kLatentGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"model_type": "mistral4",
  "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": false, "n_group": 1,
  "topk_group": 1})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace mistral4

constinit const Family kMistral4Family = {
    .architecture = "Mistral4ForCausalLM",
    .multimodal = "Mistral3ForConditionalGeneration",
    .models = "Mistral-Small-4",
    .notes = "text only",
    .describe = mistral4::describe,
    .experts = {
        .defaults = mistral4::kDefaults, .score = Score::kSoftmax, .gguf = mistral4::kGguf}};

}  // namespace moracle
