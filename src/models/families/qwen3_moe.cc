// Qwen3-MoE: per-head RMSNorm on q and k, RoPE, GQA, experts with softmax routing. Layers in
// mlp_only_layers, or off decoder_sparse_step, are dense. Qwen3-VL-MoE wraps such a model.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_parts.h"
#include "models/families/family.h"

namespace moracle {
namespace qwen3_moe {
namespace {

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                        const GroupedQuerySpec& heads, int64_t layer) {
  const Config& config = checkpoint.state().config;
  const std::string prefix = layer_prefix(checkpoint, layer);
  const std::string self_attn = prefix + "self_attn.", mlp = prefix + "mlp";
  MORACLE_TRY(auto input_norm,
              checkpoint.vector(prefix + "input_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(auto post_norm,
              checkpoint.vector(prefix + "post_attention_layernorm.weight", spec.hidden_size));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, spec, heads, {biased, biased}));
  MORACLE_TRY(attention.q_norm, checkpoint.vector(self_attn + "q_norm.weight", heads.head_dim));
  MORACLE_TRY(attention.k_norm, checkpoint.vector(self_attn + "k_norm.weight", heads.head_dim));
  MORACLE_TRY(const bool dense, is_dense_layer(config, layer));
  if (dense) {
    MORACLE_TRY(const int64_t intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
    MORACLE_TRY(DescribedWeights weights, describe_dense_mlp(checkpoint, mlp, spec, intermediate));
    return LayerDescription{
        std::move(input_norm), std::move(post_norm), std::move(attention), {}, std::move(weights)};
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
  return LayerDescription{std::move(input_norm), std::move(post_norm), std::move(attention),
                          std::move(router), std::move(experts)};
}

Result<Description> describe_with(const Checkpoint& checkpoint, const DecoderDefaults& defaults) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec spec, read_decoder_spec(config, defaults));
  MORACLE_TRY(const int64_t window, read_sliding_window(config));
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, window == 0, defaults));
  heads.window = window;  // of every layer
  return describe_decoder(checkpoint, spec, [&](int64_t layer) {
    return describe_layer(checkpoint, spec, heads, layer);
  });
}

Result<Description> describe_text(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, {});
}
Result<Description> describe_wrapped(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, {.rotary = {.theta = 500'000}});
}

constexpr ExpertNames kWrappedNames[] = {
    {.experts = "model.layers.{L}.mlp.experts", .fused = true, .either_way = true}};

}  // namespace
}  // namespace qwen3_moe

constinit const Family kQwen3MoeFamily = {.architecture = "Qwen3MoeForCausalLM",
                                          .models = "Qwen3-MoE",
                                          .describe = qwen3_moe::describe_text};
// The weights of the chosen experts always sum to one.
constinit const Family kQwen3VlMoeFamily = {.architecture = "Qwen3VLMoeForConditionalGeneration",
                                            .multimodal = "Qwen3VLMoeForConditionalGeneration",
                                            .models = "Qwen3-VL-MoE",
                                            .notes = "text only",
                                            .describe = qwen3_moe::describe_wrapped,
                                            .experts = {.names = qwen3_moe::kWrappedNames,
                                                        .score = Score::kSoftmax,
                                                        .renormalize = true,
                                                        .renormalize_keys = {}}};

}  // namespace moracle
