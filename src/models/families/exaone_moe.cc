// K-EXAONE: GQA with norms on q and k. Layers with a window use RoPE, the others none. Dense first
// layers, sigmoid routing with a correction bias, shared experts. The layers for multi-token
// prediction are not run.
#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace exaone_moe {
namespace {

// The defaults of transformers' ExaoneMoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "sliding_window": 4096, "sliding_window_pattern": 4, "first_k_dense_replace": 1,
  "moe_intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8,
  "num_shared_experts": 1, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "n_group": 1,
  "topk_group": 1, "rope_theta": 10000.0
})";

constexpr std::string_view kBias = "model.layers.{L}.mlp.e_score_correction_bias";

Result<SharedMoeSpec> read_moe(const Config& config, int64_t num_layers) {
  MORACLE_TRY(SharedMoeSpec moe, read_shared_moe(config));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  moe.bias_name = kBias;
  MORACLE_CHECK(require_keys(config, {"routed_scaling_factor", "num_shared_experts"}));
  return moe;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  const Config& config = checkpoint.state().config;
  const int64_t num_layers = checkpoint.num_layers();
  MORACLE_TRY(const DecoderSpec decoder, read_decoder_spec(config));
  MORACLE_TRY(const GroupedQuerySpec heads, read_grouped_query(config, decoder, false));
  MORACLE_TRY(const SharedMoeSpec moe, read_moe(config, num_layers));
  MORACLE_TRY(const int64_t window, config.integer_or(0, {"sliding_window"}, 1));
  // A pattern of letters counts only with layer_types, which then repeats it.
  int64_t every = 1;
  if (window > 0 && !config.has({"layer_types"})) {
    MORACLE_TRY(every, config.integer({"sliding_window_pattern"}, 1));
  }
  MORACLE_TRY(const std::vector<int64_t> windows,
              read_windows(config, window, num_layers,
                           [&](int64_t layer) { return (layer + 1) % every != 0; }));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    GroupedQuerySpec own = heads;
    own.window = windows[layer];
    if (window > 0 && own.window == 0) rotate_nothing(own.rotary);
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, decoder, own));
    MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
    return describe_shared_moe_layer(checkpoint, decoder, moe, layer, std::move(attention));
  };
  return describe_decoder(checkpoint, decoder, describe_layer);
}

constexpr GgufKey kOwnGgufKeys[] = {{"attention.sliding_window", "sliding_window"}};
constexpr auto kGgufKeys = joined(kSharedMoeGgufKeys, kOwnGgufKeys);
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.e_score_correction_bias"},
};
constexpr auto kGgufTensors = joined(kOwnGgufTensors, kSharedMoeGgufTensors);
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  return set_layer_types(model, 4);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  return put_window_pattern(draft);
}
constexpr GgufConvention kGguf[] = {{.architecture = "exaone-moe",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .constants = kSharedMoeGgufConstants,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace exaone_moe

constinit const Family kExaoneMoeFamily = {.architecture = "ExaoneMoeForCausalLM",
                                           .models = "K-EXAONE",
                                           .notes = "without multi-token prediction",
                                           .describe = exaone_moe::describe,
                                           .experts = {.defaults = exaone_moe::kDefaults,
                                                       .score = Score::kSigmoid,
                                                       .correction_bias = exaone_moe::kBias,
                                                       .gguf = exaone_moe::kGguf}};

}  // namespace moracle
