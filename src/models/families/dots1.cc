// dots.llm1: GQA with norms on q and k, and a window in the layers that layer_types names. Dense
// first layers, sigmoid routing with a correction bias, shared experts.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace dots1 {
namespace {

// The defaults of transformers' Dots1Config.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 152064, "hidden_size": 4608, "intermediate_size": 10944,
  "moe_intermediate_size": 1408, "num_hidden_layers": 62, "num_attention_heads": 32,
  "num_key_value_heads": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
  "norm_topk_prob": false, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "routed_scaling_factor": 1.0, "sliding_window": 4096, "max_window_layers": 62,
  "rope_theta": 10000.0
})";

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, false));
  MORACLE_TRY(const SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  // Without layer_types, layers from max_window_layers on have a window.
  MORACLE_TRY(const int64_t window, config.integer_or(0, {"sliding_window"}, 1));
  int64_t first = 0;
  if (window > 0 && !config.has({"layer_types"})) {
    MORACLE_TRY(first, config.integer({"max_window_layers"}, 0));
  }
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, checkpoint.num_layers(),
                           [&](int64_t layer) { return layer >= first; }));
  return describe_decoder(checkpoint, decoder, [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, own, {biased, biased}));
    MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  });
}

Status finish_gguf(GgufModel& model) {
  model.config["sliding_window"] = nullptr;
  return require_gating(model, GgufGating::kSigmoid);
}
// llama.cpp has no window in this architecture.
constexpr GgufConvention kGguf[] = {
    {.architecture = "dots1",
     .keys = kSharedMoeGgufKeys,
     .tensors = kSharedMoeGgufTensors,
     .constants =
         R"({"first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "norm_topk_prob": false})",
     .finish = finish_gguf,
     .write = put_sigmoid_gating}};

}  // namespace
}  // namespace dots1

// dots.llm1 renormalizes only if config.json says so.
constinit const Family kDots1Family = {
    .architecture = "Dots1ForCausalLM",
    .models = "dots.llm1",
    .describe = dots1::describe,
    .experts = {.defaults = dots1::kDefaults, .score = Score::kSigmoid, .gguf = dots1::kGguf}};

}  // namespace moracle
