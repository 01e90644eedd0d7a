// Solar-Open: GQA; sigmoid routing with a correction bias and a shared expert in every layer.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"

namespace moracle {
namespace solar_open {
namespace {

// The defaults of transformers' SolarOpenConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 196608, "hidden_size": 4096, "num_hidden_layers": 48, "num_attention_heads": 64,
  "num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false,
  "moe_intermediate_size": 1280, "num_experts_per_tok": 8, "n_shared_experts": 1,
  "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
  "norm_topk_prob": true, "head_dim": 128, "rope_theta": 1000000.0
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  SharedMoeSpec moe;
  MORACLE_TRY(const int64_t num_shared, config.integer({"n_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  moe.shared_intermediate = num_shared * one;
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, layer_prefix(checkpoint, layer) + "self_attn.",
                                       decoder, heads, {biased}));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

// Files of this model are read as GLM-4.5, whose architecture they have.
bool never(const Config&, const Tensors&) {
  return false;
}
constexpr GgufConvention kGguf[] = {{.architecture = "glm4moe",
                                     .keys = kGlmMoeGgufKeys,
                                     .tensors = kGlmMoeGgufTensors,
                                     .applies = never,
                                     .write = write_glm_moe_gguf}};

}  // namespace
}  // namespace solar_open

constinit const Family kSolarOpenFamily = {
    .architecture = "SolarOpenForCausalLM",
    .models = "Solar-Open",
    .describe = solar_open::describe,
    .experts = {
        .defaults = solar_open::kDefaults, .score = Score::kSigmoid, .gguf = solar_open::kGguf}};

}  // namespace moracle
