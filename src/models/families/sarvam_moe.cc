// Sarvam-30B: GLM-4.5's layers under other names, with q, k and v in one matrix.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace sarvam_moe {
namespace {

// The defaults of transformers' SarvamMoEConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 262144, "hidden_size": 4096, "intermediate_size": 8192, "num_hidden_layers": 19,
  "num_attention_heads": 64, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "attention_bias": false, "moe_intermediate_size": 1024, "num_experts_per_tok": 6,
  "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 2.5, "n_group": 1,
  "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": true,
  "head_dim": 64, "rope_theta": 8000000.0, "partial_rotary_factor": 1.0
})";

constexpr std::string_view kBias = "model.layers.{L}.mlp.gate.expert_bias";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  SharedMoeSpec moe;
  bool biased = false, qk_norm = true;
};

Result<Spec> read(const Config& config) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, true, {.partial = true}));
  MORACLE_TRY(spec.moe, read_shared_moe(config));
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor", "n_group", "topk_group"}));
  spec.moe.bias_name = kBias;
  // The published name counts where it stands, as the other names of experts and their number do.
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"use_qkv_bias", "attention_bias"}));
  MORACLE_TRY(spec.qk_norm, config.boolean_or(true, {"use_qk_norm"}));
  // Published files name the score, which transformers does not read.
  MORACLE_TRY(const std::string score, config.text_or("sigmoid", {"score_function"}));
  if (score != "sigmoid")
    return config.unsupported({"score_function"}, "sigmoid", "it is " + score);
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_CHECK(require_flag(config, "moe_router_enable_expert_bias", true));
  MORACLE_CHECK(require_flag(config, "use_bias", false));
  return spec;
}

Result<GroupedQueryDescription> describe_attention(const Checkpoint& checkpoint,
                                                   const std::string& prefix, const Spec& spec) {
  const GroupedQuerySpec& heads = spec.heads;
  const DecoderSpec& decoder = spec.decoder;
  const auto linear = spec.biased ? describe_biased_linear : describe_linear;
  MORACLE_TRY(DescribedMatrix qkv,
              linear(checkpoint, {prefix + "query_key_value"},
                     {heads.queries() + heads.keys() + heads.values()}, decoder.hidden_size));
  MORACLE_TRY(DescribedMatrix o, describe_linear(checkpoint, {prefix + "dense"},
                                                 {decoder.hidden_size}, heads.outputs()));
  GroupedQueryDescription attention{heads, {}, {}, {}, std::move(qkv), std::move(o)};
  if (!spec.qk_norm) return attention;
  MORACLE_TRY(attention.q_norm,
              describe_norm(checkpoint, prefix + "query_layernorm", heads.head_dim, decoder));
  MORACLE_TRY(attention.k_norm,
              describe_norm(checkpoint, prefix + "key_layernorm", heads.head_dim, decoder));
  return attention;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    MORACLE_TRY(
        GroupedQueryDescription attention,
        describe_attention(checkpoint, layer_prefix(checkpoint, layer) + "attention.", spec));
    return describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe, layer,
                                     std::move(attention));
  };
  return describe_decoder(checkpoint, spec.decoder, describe_layer, "norm", "word_embeddings");
}

}  // namespace
}  // namespace sarvam_moe

constinit const Family kSarvamMoeFamily = {.architecture = "SarvamMoEForCausalLM",
                                           .saved_as = "Glm4MoeForCausalLM",
                                           .model_type = "sarvam_moe",
                                           .models = "Sarvam-30B",
                                           .notes = "without multi-token prediction",
                                           .describe = sarvam_moe::describe,
                                           .experts = {.defaults = sarvam_moe::kDefaults,
                                                       .score = Score::kSigmoid,
                                                       .correction_bias = sarvam_moe::kBias}};

}  // namespace moracle
