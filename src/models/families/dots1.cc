// dots.llm1: GQA with norms on q and k, and a window in the layers that layer_types names. Dense
// first layers, sigmoid routing with a correction bias, shared experts.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace dots1 {
namespace {

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, false));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  // Without layer_types, layers from max_window_layers on have a window. transformers' default is
  // the number of layers of one model.
  MORACLE_TRY(const int64_t window, config.integer_or(0, {"sliding_window"}, 1));
  if (window > 0 && !config.has({"layer_types"}))
    MORACLE_CHECK(require_keys(config, {"max_window_layers"}));
  MORACLE_TRY(const int64_t first, config.integer_or(0, {"max_window_layers"}, 0));
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, checkpoint.num_layers(),
                           [&](int64_t layer) { return layer >= first; }));
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, own, {biased, biased}));
    MORACLE_TRY(attention.q_norm, checkpoint.vector(self_attn + "q_norm.weight", heads.head_dim));
    MORACLE_TRY(attention.k_norm, checkpoint.vector(self_attn + "k_norm.weight", heads.head_dim));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

}  // namespace
}  // namespace dots1

// dots.llm1 renormalizes only if config.json says so.
constinit const Family kDots1Family = {.architecture = "Dots1ForCausalLM",
                                       .models = "dots.llm1",
                                       .describe = dots1::describe,
                                       .experts = {.score = Score::kSigmoid}};

}  // namespace moracle
