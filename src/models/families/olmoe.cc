// OLMoE: GQA with a norm over all heads of q, and of k; experts with softmax routing in every
// layer. FlexOlmo: the same on the residual stream itself, with norms of the outputs instead.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"

namespace moracle {
namespace olmoe {
namespace {

// The defaults of transformers' OlmoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 2048, "num_hidden_layers": 16,
  "num_attention_heads": 16, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false,
  "num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": false, "rope_theta": 10000.0
})";

// The defaults of transformers' FlexOlmoConfig.
constexpr std::string_view kFlexDefaults = R"({
  "vocab_size": 100352, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 4096,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "num_experts_per_tok": 5, "num_experts": 7, "norm_topk_prob": false, "rope_theta": 500000.0
})";

enum class Norms { kOfInputs, kOfOutputs };

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased,
                                        Norms norms) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_CHECK(describe_norms_over_heads(checkpoint, self_attn, attention));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "mlp.gate", experts.spec));
  if (norms == Norms::kOfInputs) {
    return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                  std::move(router));
  }
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, spec.hidden_size, spec);
  };
  LayerDescription described{{}, {}, std::move(attention), std::move(router), std::move(experts)};
  MORACLE_TRY(described.attention_output.norm, norm("post_attention_layernorm"));
  MORACLE_TRY(described.mlp_output.norm, norm("post_feedforward_layernorm"));
  return described;
}

Result<Description> describe_with(const Checkpoint& checkpoint, Norms norms) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, spec));
  if (config.has({"clip_qkv"})) return config.unsupported({"clip_qkv"}, "null", "it is set");
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer, biased, norms);
  });
}
Result<Description> describe(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, Norms::kOfInputs);
}
Result<Description> describe_flex(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, Norms::kOfOutputs);
}

constexpr GgufKey kGgufKeys[] = {{"feed_forward_length", "intermediate_size"}};
// llama.cpp never renormalizes the weights of this architecture.
constexpr GgufConvention kGguf[] = {
    {.architecture = "olmoe", .keys = kGgufKeys, .constants = R"({"norm_topk_prob": false})"}};

}  // namespace
}  // namespace olmoe

constinit const Family kOlmoeFamily = {.architecture = "OlmoeForCausalLM",
                                       .models = "OLMoE",
                                       .notes = "`clip_qkv` is refused",
                                       .describe = olmoe::describe,
                                       .experts = {.defaults = olmoe::kDefaults,
                                                   .intermediate_size = kOnlySizeKeys,
                                                   .score = Score::kSoftmax,
                                                   .gguf = olmoe::kGguf}};

constinit const Family kFlexOlmoFamily = {.architecture = "FlexOlmoForCausalLM",
                                          .models = "FlexOlmo",
                                          .describe = olmoe::describe_flex,
                                          .experts = {.defaults = olmoe::kFlexDefaults,
                                                      .intermediate_size = kOnlySizeKeys,
                                                      .score = Score::kSoftmax}};

}  // namespace moracle
