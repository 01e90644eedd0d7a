// Ling-3.0: Kimi Delta Attention whose decays have a lower bound, and in some layers MLA with a
// gate for each head. Dense first layers, then DeepSeek-V3's experts. The layers for multi-token
// prediction are not run.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/recurrent/kimi_delta.h"

namespace moracle {
namespace bailing_hybrid {
namespace {

// The defaults of transformers' BailingHybridConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 157184, "hidden_size": 2560, "intermediate_size": 6144,
  "moe_intermediate_size": 768, "num_hidden_layers": 42, "num_attention_heads": 32,
  "num_shared_experts": 1, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "num_expert_group": 8,
  "topk_group": 4, "num_experts_per_token": 8, "first_k_dense_replace": 2,
  "moe_renormalize": true, "hidden_act": "silu", "model_max_length": 262144,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "num_experts": 512, "rope_theta": 6000000.0, "head_dim": 128, "short_conv_kernel_size": 4,
  "layer_group_size": 6, "kda_safe_gate": true, "kda_lower_bound": -5.0,
  "num_nextn_predict_layers": 1
})";

constexpr const char *kTopKKeysOf[] = {"num_experts_per_token", "num_experts_per_tok"},
                     *kRenormalizeKeysOf[] = {"moe_renormalize", "norm_topk_prob"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.gate.expert_bias";

struct Spec {
  DecoderSpec decoder;
  LatentSpec latent;
  KimiDeltaSpec delta;
  std::vector<bool> is_delta;  // by layer
  SharedMoeSpec moe;
  bool biased = false;
};

Result<KimiDeltaSpec> read_delta(const Config& config, const DecoderSpec& decoder) {
  KimiDeltaSpec spec;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 12));
  // transformers overwrites head_dim with the columns of RoPE when it saves a file.
  MORACLE_TRY(spec.head_dim, config.integer({"linear_head_dim", "head_dim"}, 1, 1024));
  MORACLE_TRY(spec.kernel, config.integer({"short_conv_kernel_size"}, 2, 16));
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(const bool bounded, config.boolean_or(true, {"kda_safe_gate"}));
  if (!bounded) return spec;
  MORACLE_TRY(const double bound, config.number({"kda_lower_bound"}));
  if (!(bound < 0 && bound >= -1e6))
    return config.wrong({"kda_lower_bound"}, "a number below 0", str("it is ", bound));
  spec.lower_bound = static_cast<float>(bound);
  return spec;
}

// Without the key, transformers takes the context of its class, not that of the file.
Status require_original_context(const Config& config) {
  MORACLE_TRY(const std::optional<Config> rope, rotary_settings(config));
  const Config::Keys key = {"original_max_position_embeddings"};
  if (!rope || rope->has(key) || config.has(key)) return {};
  MORACLE_TRY(const std::string type, rope->text_or("default", {"rope_type", "type"}));
  if (type != "yarn" && type != "llama3") return {};
  return rope->unsupported(key, "a number for " + type, "it is missing");
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  if (spec.decoder.activation != Activation::kSilu)
    return config.unsupported({"hidden_act"}, "silu, for Kimi Delta Attention",
                              "it is another one");
  MORACLE_TRY(spec.delta, read_delta(config, spec.decoder));
  MORACLE_TRY(const int64_t group, config.integer({"layer_group_size"}, 1));
  std::vector<bool> grouped;
  for (int64_t layer = 1; layer <= num_layers; ++layer) grouped.push_back(layer % group != 0);
  MORACLE_TRY(spec.is_delta, read_delta_layers(config, std::move(grouped)));
  MORACLE_CHECK(require_original_context(config));
  MORACLE_TRY(spec.latent, read_latent(config));
  spec.latent.head_gate = true;
  MORACLE_TRY(spec.moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, spec.moe));
  if (spec.moe.sparse_step != 1)
    return config.unsupported({"moe_layer_freq"}, "1", str("it is ", spec.moe.sparse_step));
  spec.moe.bias_name = kBias;
  MORACLE_CHECK(require_keys(config, {"topk_group", "routed_scaling_factor"}));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  // Published files have some of these keys, which transformers does not read.
  MORACLE_TRY(const std::string score, config.text_or("sigmoid", {"score_function"}));
  if (score != "sigmoid")
    return config.unsupported({"score_function"}, "sigmoid", "it is " + score);
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_CHECK(require_flag(config, "moe_router_enable_expert_bias", true));
  MORACLE_CHECK(require_flag(config, "rope_interleave", true));
  MORACLE_CHECK(require_flag(config, "use_bias", false));
  MORACLE_CHECK(require_flag(config, "use_qkv_bias", false));
  return spec;
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint, const Spec& spec,
                                                int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer) + "attention.";
  // transformers reads either name.
  const char* const o = checkpoint.has_tensor(prefix + "o_proj.weight") ? "o_proj" : "dense";
  if (spec.is_delta[static_cast<size_t>(layer)]) {
    MORACLE_TRY(KimiDeltaDescription delta,
                describe_kimi_delta(checkpoint, prefix, spec.decoder, spec.delta,
                                    {spec.delta.num_heads}, o));
    return AttentionDescription(std::move(delta));
  }
  MORACLE_TRY(LatentDescription latent,
              describe_latent(checkpoint, prefix, spec.decoder, spec.latent, spec.biased, o));
  return AttentionDescription(std::move(latent));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    MORACLE_TRY(AttentionDescription attention, describe_attention(checkpoint, spec, layer));
    return describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe, layer,
                                     std::move(attention));
  };
  return describe_decoder(checkpoint, spec.decoder, describe_layer, "norm", "word_embeddings");
}

}  // namespace
}  // namespace bailing_hybrid

constinit const Family kBailingHybridFamily = {
    .architecture = "BailingHybridForCausalLM",
    .models = "Ling-3.0-Flash",
    .notes = "without multi-token prediction",
    .describe = bailing_hybrid::describe,
    .experts = {.defaults = bailing_hybrid::kDefaults,
                .top_k = bailing_hybrid::kTopKKeysOf,
                .score = Score::kSigmoid,
                .renormalize_keys = bailing_hybrid::kRenormalizeKeysOf,
                .correction_bias = bailing_hybrid::kBias}};

}  // namespace moracle
