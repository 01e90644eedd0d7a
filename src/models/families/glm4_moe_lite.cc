// GLM-4.7-Flash: DeepSeek-V3's layers, of which mlp_layer_types may say which are dense.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/latent_decoder.h"

namespace moracle {
namespace glm4_moe_lite {
namespace {

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  constexpr DecoderDefaults kDefaults{1e-5};
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config, kDefaults));
  MORACLE_TRY(const LatentSpec attention, read_latent(config));
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config, 1));
  MORACLE_CHECK(read_mlp_layer_types(config, checkpoint.num_layers(), moe));
  for (size_t layer = 0; layer < moe.dense.size() && config.has({"first_k_dense_replace"});
       ++layer) {
    if (moe.dense[layer] == (static_cast<int64_t>(layer) < moe.dense_layers)) continue;
    return config.wrong({"first_k_dense_replace"}, "the dense layers of mlp_layer_types",
                        str("it is ", moe.dense_layers));
  }
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor"}));
  return describe_latent_decoder(checkpoint, decoder, attention, moe);
}

}  // namespace
}  // namespace glm4_moe_lite

constinit const Family kGlm4MoeLiteFamily = {
    .architecture = "Glm4MoeLiteForCausalLM",
    .models = "GLM-4.7-Flash",
    .notes = "without multi-token prediction",
    .describe = glm4_moe_lite::describe,
    .experts = {.score = Score::kSigmoid, .renormalize = true}};

}  // namespace moracle
