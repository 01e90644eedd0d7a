// Granite-MoE: GQA with a scale of its own. Factors on the embedding, on what layers add to the
// residual, and on the logits. Softmax over the logits of the chosen experts.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_parts.h"
#include "models/families/family.h"

namespace moracle {
namespace granite_moe {
namespace {

constexpr ExpertNames kNames[] = {{.experts = "model.layers.{L}.block_sparse_moe",
                                   .up = "input_linear.weight",
                                   .down = "output_linear.weight",
                                   .fused = true}};
constexpr const char* kSize[] = {"intermediate_size"};

Result<float> read_factor(const Config& config, const char* key) {
  MORACLE_TRY(const double factor, config.number_or(1, {key}));
  if (factor > 0 && factor <= 1e6) return static_cast<float>(factor);
  return config.wrong({key}, "a number above 0", str("it is ", factor));
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer, bool biased) {
  const std::string prefix = layer_prefix(checkpoint, layer);
  const int64_t hidden = spec.hidden_size;
  MORACLE_TRY(auto input_norm, describe_norm(checkpoint, prefix + "input_layernorm", hidden, spec));
  MORACLE_TRY(auto post_norm,
              describe_norm(checkpoint, prefix + "post_attention_layernorm", hidden, spec));
  MORACLE_TRY(
      GroupedQueryDescription attention,
      describe_grouped_query(checkpoint, prefix + "self_attn.", spec, heads, {biased, biased}));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "block_sparse_moe.router.layer", experts.spec));
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(attention),
                          std::move(router), std::move(experts)};
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(DecoderSpec spec, read_decoder_spec(config));
  MORACLE_TRY(spec.embedding_scale, read_factor(config, "embedding_multiplier"));
  MORACLE_TRY(spec.residual_scale, read_factor(config, "residual_multiplier"));
  MORACLE_TRY(const float divisor, read_factor(config, "logits_scaling"));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec));
  MORACLE_TRY(heads.scale, read_factor(config, "attention_multiplier"));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(Description description, describe_decoder(checkpoint, spec, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, heads, layer, biased);
              }));
  // The output layer is linear: its input may be divided instead of the logits.
  for (float& weight : description.final_norm) weight /= divisor;
  return description;
}

}  // namespace
}  // namespace granite_moe

constinit const Family kGraniteMoeFamily = {.architecture = "GraniteMoeForCausalLM",
                                            .models = "Granite-MoE",
                                            .describe = granite_moe::describe,
                                            .experts = {.names = granite_moe::kNames,
                                                        .intermediate_size = granite_moe::kSize,
                                                        .score = Score::kTopkThenSoftmax}};

}  // namespace moracle
