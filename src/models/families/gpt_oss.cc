// GPT-OSS: GQA with biases and one sink per head, and a window in every other layer. YaRN. A router
// with a bias, softmax over the top_k alone. Experts with biases.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_parts.h"
#include "models/families/family.h"

namespace moracle {
namespace gpt_oss {
namespace {

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.", router_module = prefix + "mlp.router";
  MORACLE_TRY(auto input_norm,
              checkpoint.vector(prefix + "input_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(auto post_norm,
              checkpoint.vector(prefix + "post_attention_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_TRY(attention.sinks, checkpoint.vector(self_attn + "sinks", heads.num_heads));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_CHECK(require_bias(checkpoint, {router_module}));
  for (const char* bias : {".gate_up_proj_bias", ".down_proj_bias"}) {
    if (checkpoint.has_tensor(experts.spec.name + bias)) continue;
    return checkpoint.state().tensors.wrong(experts.spec.name + bias, "to be in the file",
                                            "it is missing");
  }
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, router_module, experts.spec));
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(attention),
                          std::move(router), std::move(experts)};
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
  // Require rotary settings: without them transformers would assume the YaRN settings of one
  // published model.
  if (!config.has({"rope_parameters", "rope_scaling"}))
    return config.wrong({"rope_parameters", "rope_scaling"}, "an object", "it is missing");
  constexpr DecoderDefaults kDefaults{1e-5, {150'000}};
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config, kDefaults));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, spec, false, kDefaults));
  MORACLE_TRY(const int64_t window, config.integer({"sliding_window"}, 1));
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, checkpoint.num_layers(),
                           [](int64_t layer) { return layer % 2 == 0; }));
  MORACLE_TRY(const bool biased, config.boolean_or(true, {"attention_bias"}));
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    return describe_layer(checkpoint, spec, own, layer, biased);
  });
}

}  // namespace
}  // namespace gpt_oss

constinit const Family kGptOssFamily = {
    .architecture = "GptOssForCausalLM",
    .models = "GPT-OSS",
    .describe = gpt_oss::describe,
    .experts = {.names = gpt_oss::kNames,
                .intermediate_size = kOnlySizeKeys,
                .score = Score::kTopkThenSoftmax,
                // config.json says silu and means the clamped variant with a limit.
                .activation = Activation::kSwigluOai}};

}  // namespace moracle
