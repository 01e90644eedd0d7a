// K-EXAONE: GQA with norms on q and k. Layers with a window use RoPE, the others none. Dense first
// layers, sigmoid routing with a correction bias, shared experts. The layers for multi-token
// prediction are not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace exaone_moe {
namespace {

constexpr std::string_view kBias = "model.layers.{L}.mlp.e_score_correction_bias";

Result<SharedMoeSpec> read_moe(const Config& config, int64_t num_layers) {
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config, 1));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  moe.bias_name = kBias;
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor", "num_shared_experts"}));
  return moe;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  const int64_t num_layers = checkpoint.num_layers();
  constexpr DecoderDefaults kDefaults{.norm_epsilon = 1e-5};
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config, kDefaults));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, false, kDefaults));
  MORACLE_TRY(const SharedMoeSpec moe, read_moe(config, num_layers));
  // transformers' defaults of these keys are the numbers of one model.
  MORACLE_TRY(const int64_t window, config.integer_or(0, {"sliding_window"}, 1));
  if (window > 0 && !config.has({"layer_types"}))
    return config.wrong({"layer_types"}, "one for each layer", "it is missing");
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, num_layers, [](int64_t) { return false; }));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    if (window > 0 && own.window == 0) rotate_nothing(own.rotary);
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, own));
    MORACLE_TRY(attention.q_norm, checkpoint.vector(self_attn + "q_norm.weight", heads.head_dim));
    MORACLE_TRY(attention.k_norm, checkpoint.vector(self_attn + "k_norm.weight", heads.head_dim));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  };
  return describe_decoder(checkpoint, decoder, describe_layer);
}

}  // namespace
}  // namespace exaone_moe

constinit const Family kExaoneMoeFamily = {
    .architecture = "ExaoneMoeForCausalLM",
    .models = "K-EXAONE",
    .notes = "without multi-token prediction",
    .describe = exaone_moe::describe,
    .experts = {
        .score = Score::kSigmoid, .renormalize = true, .correction_bias = exaone_moe::kBias}};

}  // namespace moracle
