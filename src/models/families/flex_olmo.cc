// FlexOlmo: OLMoE's attention and experts, which read the residual stream itself. Norms of their
// outputs.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"

namespace moracle {
namespace flex_olmo {
namespace {

// The defaults of transformers' FlexOlmoConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "num_experts_per_tok": 5, "num_experts": 7, "norm_topk_prob": false, "rope_theta": 500000.0
})";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.";
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, spec.hidden_size, spec);
  };
  MORACLE_TRY(auto attention_norm, norm("post_attention_layernorm"));
  MORACLE_TRY(auto mlp_norm, norm("post_feedforward_layernorm"));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_CHECK(describe_norms_over_heads(checkpoint, self_attn, attention));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "mlp.gate", experts.spec));
  LayerDescription described{{}, {}, std::move(attention), std::move(router), std::move(experts)};
  described.attention_output.norm = std::move(attention_norm);
  described.mlp_output.norm = std::move(mlp_norm);
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, spec));
  if (config.has({"clip_qkv"})) return config.unsupported({"clip_qkv"}, "null", "it is set");
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer, biased);
  });
}

}  // namespace
}  // namespace flex_olmo

constinit const Family kFlexOlmoFamily = {.architecture = "FlexOlmoForCausalLM",
                                          .models = "FlexOlmo",
                                          .describe = flex_olmo::describe,
                                          .experts = {.defaults = flex_olmo::kDefaults,
                                                      .intermediate_size = kOnlySizeKeys,
                                                      .score = Score::kSoftmax}};

}  // namespace moracle
