// Solar-Open: GQA; sigmoid routing with a correction bias and a shared expert in every layer.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace solar_open {
namespace {

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  constexpr DecoderDefaults kDefaults{.norm_epsilon = 1e-5,
                                      .rotary = {.theta = 1'000'000, .part = 1}};
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config, kDefaults));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, true, kDefaults));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  SharedMoeSpec moe;
  MORACLE_TRY(const int64_t num_shared, config.integer_or(1, {"n_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  moe.shared_intermediate = num_shared * one;
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, layer_prefix(checkpoint, layer) + "self_attn.",
                                       decoder, heads, {biased}));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

}  // namespace
}  // namespace solar_open

constinit const Family kSolarOpenFamily = {
    .architecture = "SolarOpenForCausalLM",
    .models = "Solar-Open",
    .describe = solar_open::describe,
    .experts = {.score = Score::kSigmoid, .renormalize = true}};

}  // namespace moracle
