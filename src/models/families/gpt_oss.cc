// GPT-OSS: GQA with biases and one sink per head, and a window in every other layer. YaRN. A router
// with a bias, softmax over the top_k alone. Experts with biases.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace gpt_oss {
namespace {

// The defaults of transformers' GptOssConfig.
constexpr std::string_view kDefaults = R"({
  "num_hidden_layers": 36, "num_local_experts": 128, "vocab_size": 201088, "hidden_size": 2880,
  "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
  "sliding_window": 128, "tie_word_embeddings": false, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "num_experts_per_tok": 4,
  "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000.0,
  "rope_parameters": {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": false, "original_max_position_embeddings": 4096
  }
})";

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.", router_module = prefix + "mlp.router";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_TRY(attention.sinks, checkpoint.vector(self_attn + "sinks", heads.num_heads));
  // GGUF files hold each projection of each expert as a tensor.
  const std::string first = prefix + "mlp.experts.0.";
  const bool fused = !checkpoint.has_tensor(first + "gate_proj.weight");
  if (!fused) {
    MORACLE_CHECK(
        require_bias(checkpoint, {first + "gate_proj", first + "up_proj", first + "down_proj"}));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_CHECK(require_bias(checkpoint, {router_module}));
  for (const char* bias : {".gate_up_proj_bias", ".down_proj_bias"}) {
    if (!fused || checkpoint.has_tensor(experts.spec.name + bias)) continue;
    return checkpoint.state().tensors.wrong(experts.spec.name + bias, "to be in the file",
                                            "it is missing");
  }
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, router_module, experts.spec));
  return describe_decoder_layer(checkpoint, spec, layer, std::move(attention), std::move(experts),
                                std::move(router));
}

constexpr ExpertNames kNames[] = {{.experts = "model.layers.{L}.mlp.experts",
                                   .fused = true,
                                   .transposed = true,
                                   .interleaved = true}};

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  // Routing and activation depend on model_type.
  MORACLE_TRY(const std::string type, config.text({"model_type"}));
  if (type != "gpt_oss") return config.wrong({"model_type"}, "gpt_oss", "it is " + type);
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, spec, false));
  MORACLE_TRY(const int64_t window, config.integer({"sliding_window"}, 1));
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, checkpoint.num_layers(),
                           [](int64_t layer) { return layer % 2 == 0; }));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    return describe_layer(checkpoint, spec, own, layer, biased);
  });
}

constexpr GgufKey kGgufKeys[] = {
    {"expert_feed_forward_length", "intermediate_size"},
    {"attention.sliding_window", "sliding_window"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.post_attention_norm", "model.layers.{L}.post_attention_layernorm"},
    {"blk.{L}.attn_sinks.weight", "model.layers.{L}.self_attn.sinks"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mlp.router"},
};
Status finish_gguf(GgufModel& model) {
  // The configuration class's value, which files lack.
  if (model.config.contains("rope_scaling")) model.config["rope_scaling"]["truncate"] = false;
  return set_layer_types(model, 2);
}
constexpr GgufConvention kGguf[] = {{.architecture = "gpt-oss",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = R"({"model_type": "gpt_oss"})",
                                     .finish = finish_gguf}};

}  // namespace
}  // namespace gpt_oss

constinit const Family kGptOssFamily = {
    .architecture = "GptOssForCausalLM",
    .models = "GPT-OSS",
    .describe = gpt_oss::describe,
    .experts = {.defaults = gpt_oss::kDefaults,
                .names = gpt_oss::kNames,
                .intermediate_size = kOnlySizeKeys,
                .score = Score::kTopkThenSoftmax,
                // config.json says silu and means the clamped variant with a limit.
                .activation = Activation::kSwigluOai,
                .gguf = gpt_oss::kGguf}};

}  // namespace moracle
