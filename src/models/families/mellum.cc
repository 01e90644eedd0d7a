// Mellum-2: GQA with norms on q and k; layers with a window have a RoPE of their own. Softmax
// routing.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace mellum {
namespace {

// The defaults of transformers' MellumConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 98304, "hidden_size": 2304, "intermediate_size": 7168, "num_hidden_layers": 28,
  "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
  "attention_bias": false, "sliding_window": 1024, "moe_intermediate_size": 896,
  "num_experts_per_tok": 8, "num_experts": 64, "norm_topk_prob": true, "head_dim": 128,
  "rope_parameters": {
    "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
  }
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  const int64_t num_layers = checkpoint.num_layers();
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const std::vector<GroupedQuerySpec> heads,
              read_windowed_layers(config, decoder, num_layers, [](int64_t) { return false; },
                                   {.partial = true}));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  SharedMoeSpec moe{.correction_bias = false,
                    .dense = std::vector<bool>(static_cast<size_t>(num_layers))};
  MORACLE_TRY(moe.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder,
                                       heads[static_cast<size_t>(layer)], {biased, biased}));
    MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
};
constexpr auto kGgufKeys = joined(kOwnGgufKeys, kWindowedGgufKeys);
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSoftmax));
  set_attention_bias(model);
  MORACLE_CHECK(set_layer_types(model, 4));
  return set_windowed_rotary(model);
}
// llama.cpp renormalizes weights of this architecture, and has no dense layers.
constexpr GgufConvention kGguf[] = {{.architecture = "mellum",
                                     .keys = kGgufKeys,
                                     .usual_heads = false,
                                     .constants = R"({"norm_topk_prob": true})",
                                     .finish = finish_gguf,
                                     .write = put_windowed}};

}  // namespace
}  // namespace mellum

constinit const Family kMellumFamily = {
    .architecture = "MellumForCausalLM",
    .models = "Mellum-2",
    .notes = "without multi-token prediction",
    .describe = mellum::describe,
    .experts = {.defaults = mellum::kDefaults, .score = Score::kSoftmax, .gguf = mellum::kGguf}};

}  // namespace moracle
