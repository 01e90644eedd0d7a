// GLM-4.5, 4.6 and 4.7: GQA with RoPE on a part of each head and, if config.json says so, norms on
// q and k. Dense first layers, sigmoid routing with a correction bias, shared experts. The layers
// for multi-token prediction are not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace glm4_moe {
namespace {

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  constexpr DecoderDefaults kDefaults{.norm_epsilon = 1e-5, .rotary = {.part = 0.5}};
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config, kDefaults));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, true, kDefaults));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const bool qk_norm, config.boolean_or(false, {"use_qk_norm"}));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, heads, {biased}));
    if (qk_norm) {
      MORACLE_TRY(attention.q_norm, checkpoint.vector(self_attn + "q_norm.weight", heads.head_dim));
      MORACLE_TRY(attention.k_norm, checkpoint.vector(self_attn + "k_norm.weight", heads.head_dim));
    }
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  };
  return describe_decoder(checkpoint, decoder, describe_layer);
}

}  // namespace
}  // namespace glm4_moe

constinit const Family kGlm4MoeFamily = {
    .architecture = "Glm4MoeForCausalLM",
    .models = "GLM-4.5, 4.6, 4.7",
    .notes = "without multi-token prediction",
    .describe = glm4_moe::describe,
    .experts = {.score = Score::kSigmoid, .renormalize = true}};

}  // namespace moracle
