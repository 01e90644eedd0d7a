// Command-A+: attention and feed-forward read one norm and are added together. LayerNorm without
// biases, or RMSNorm. Layers with a window use RoPE, the others none, but dense first layers may.
// Softmax over the chosen experts, or sigmoids; shared experts are added or averaged.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace cohere2_moe {
namespace {

// The defaults of transformers' Cohere2MoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "logit_scale": 0.0625,
  "num_hidden_layers": 40, "num_attention_heads": 64, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 8192, "layer_norm_eps": 1e-05, "tie_word_embeddings": true,
  "rope_theta": 10000.0, "attention_bias": false, "sliding_window": 4096,
  "num_experts_per_tok": 2, "num_experts": 8, "num_shared_experts": 0,
  "shared_expert_combination_strategy": "average", "expert_selection_fn": "softmax",
  "prefix_dense_sliding_window_pattern": 1, "norm_topk_prob": true, "sliding_window_pattern": 4,
  "first_k_dense_replace": 0
})";

constexpr const char* kSize[] = {"intermediate_size"};
constexpr const char* kScore[] = {"expert_selection_fn"};

struct Spec {
  DecoderSpec decoder;
  std::vector<GroupedQuerySpec> heads;  // by layer
  SharedMoeSpec moe;
  float logit_scale = 1;
  float mlp_scale = 1;  // of experts and shared experts together
  bool biased = false;
};

Result<DecoderSpec> read_decoder(const Config& config) {
  const bool rms = config.has({"rms_norm_eps"});
  MORACLE_TRY(DecoderSpec decoder,
              read_decoder_spec(config, rms ? "rms_norm_eps" : "layer_norm_eps"));
  decoder.layer_norm = !rms;
  decoder.norm_bias = false;
  return decoder;
}

Status read_moe(const Config& config, int64_t num_layers, Spec& spec) {
  SharedMoeSpec& moe = spec.moe;
  moe.correction_bias = false;
  MORACLE_TRY(moe.dense_layers, config.integer({"first_k_dense_replace"}, 0));
  MORACLE_TRY(const int64_t size, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(moe.dense_intermediate,
              config.integer_or(size, {"prefix_dense_intermediate_size"}, 1, 1 << 24));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, moe));
  MORACLE_CHECK(check_dense_layers(config, moe));
  MORACLE_TRY(const int64_t num_shared, config.integer({"num_shared_experts"}, 0, 1 << 10));
  moe.shared_intermediate = num_shared * size;
  MORACLE_TRY(const std::string combined, config.text({"shared_expert_combination_strategy"}));
  if (combined != "average" && combined != "sum") {
    return config.unsupported({"shared_expert_combination_strategy"}, "average or sum",
                              "it is " + combined);
  }
  if (num_shared > 0 && combined == "average") spec.mlp_scale = 0.5f;
  return {};
}

Status read_attention(const Config& config, int64_t num_layers, Spec& spec) {
  MORACLE_TRY(const auto scaling, config.object({"rope_scaling"}));
  if (scaling && !scaling->value().empty())
    return config.unsupported({"rope_scaling"}, "null, which transformers uses", "it is set");
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec.decoder, false));
  heads.rotary.interleaved = true;
  // Without layer_types, each so many layers have no window; the dense first layers count apart.
  int64_t every = 1;
  if (!config.has({"layer_types"})) {
    MORACLE_TRY(every, config.integer({"sliding_window_pattern"}, 1));
  }
  MORACLE_TRY(const int64_t prefix_every,
              config.integer({"prefix_dense_sliding_window_pattern"}, 1));
  const int64_t dense = spec.moe.dense_layers;
  const auto is_windowed = [&](int64_t layer) {
    return layer < dense ? (layer + 1) % prefix_every != 0 : (layer - dense + 1) % every != 0;
  };
  MORACLE_TRY(const std::vector<int64_t> windowed,
              read_windows(config, 1, num_layers, is_windowed));
  int64_t window = 0;
  if (std::find(windowed.begin(), windowed.end(), 1) != windowed.end()) {
    MORACLE_TRY(window, config.integer({"sliding_window"}, 1));
  }
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    spec.heads.push_back(heads);
    spec.heads.back().window = windowed[static_cast<size_t>(layer)] * window;
    const bool rotates =
        spec.heads.back().window > 0 || (spec.moe.is_dense(layer) && prefix_every == 1);
    if (!rotates) rotate_nothing(spec.heads.back().rotary);
  }
  return {};
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder(config));
  MORACLE_CHECK(read_moe(config, num_layers, spec));
  MORACLE_CHECK(read_attention(config, num_layers, spec));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const double scale, config.number({"logit_scale"}));
  if (!(scale > 0 && scale <= 1e6))
    return config.wrong({"logit_scale"}, "a number above 0", str("it is ", scale));
  spec.logit_scale = static_cast<float>(scale);
  return spec;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const DecoderSpec& decoder = spec.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer), mlp = prefix + "mlp";
  MORACLE_TRY(auto input_norm,
              describe_norm(checkpoint, prefix + "input_layernorm", decoder.hidden_size, decoder));
  MORACLE_TRY(
      GroupedQueryDescription attention,
      describe_grouped_query(checkpoint, prefix + "self_attn.", decoder,
                             spec.heads[static_cast<size_t>(layer)], {spec.biased, spec.biased}));
  if (spec.moe.is_dense(layer)) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, decoder, spec.moe.dense_intermediate));
    return LayerDescription{.input_norm = std::move(input_norm),
                            .post_norm = {},
                            .attention = std::move(attention),
                            .router = {},
                            .mlp = std::move(weights),
                            .parallel = true};
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router, describe_router(checkpoint, mlp + ".gate", experts.spec));
  LayerDescription described{.input_norm = std::move(input_norm),
                             .post_norm = {},
                             .attention = std::move(attention),
                             .router = std::move(router),
                             .mlp = std::move(experts),
                             .parallel = true};
  described.mlp_output.scale = spec.mlp_scale;
  if (spec.moe.shared_intermediate > 0) {
    MORACLE_TRY(described.shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "",
                                                         decoder, spec.moe.shared_intermediate));
  }
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  MORACLE_TRY(Description description,
              describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, layer);
              }));
  // The output layer is linear: its input may be scaled instead of the logits.
  for (float& weight : description.final_norm) weight *= spec.logit_scale;
  return description;
}

constexpr GgufKey kGgufKeys[] = {
    {"attention.layer_norm_epsilon", "layer_norm_eps", false},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", false},
    {"feed_forward_length", "prefix_dense_intermediate_size", false},
    {"expert_feed_forward_length", "intermediate_size"},
    {"expert_shared_count", "num_shared_experts", false},
    {"expert_weights_norm", "norm_topk_prob", false},
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"attention.sliding_window", "sliding_window"},
    {"logit_scale", "logit_scale"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_experts.down_proj"},
};
Status finish_gguf(GgufModel& model) {
  MORACLE_TRY(const auto gating, gguf_optional(model, "expert_gating_func", 0));
  const bool softmax = gating.value_or(0) == static_cast<int64_t>(GgufGating::kSoftmax);
  if (!softmax) MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  model.config["expert_selection_fn"] = softmax ? "softmax" : "sigmoid";
  const std::string scale = gguf_key(model, "expert_weights_scale");
  MORACLE_TRY(const double factor, model.metadata.number_or(1, {scale.c_str()}));
  if (factor != 1) return model.metadata.unsupported({scale.c_str()}, "1", str("it is ", factor));
  model.config.erase("rope_scaling");  // "none"
  set_attention_bias(model);
  return set_layer_types(model, 4, GgufUnwindowed::kFirst);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const std::string score, draft.config.text_or("softmax", {"expert_selection_fn"}));
  MORACLE_CHECK(score == "softmax" ? put_softmax_gating(draft) : put_sigmoid_gating(draft));
  MORACLE_CHECK(put_leading_dense(draft));
  return put_window_pattern(draft);
}
// llama.cpp rotates dense first layers, and averages experts and shared experts.
constexpr GgufConvention kGguf[] = {
    {.architecture = "cohere2moe",
     .keys = kGgufKeys,
     .tensors = kGgufTensors,
     .constants = R"({"num_shared_experts": 0, "norm_topk_prob": false,
                      "shared_expert_combination_strategy": "average",
                      "prefix_dense_sliding_window_pattern": 1})",
     .finish = finish_gguf,
     .write = write_gguf}};

}  // namespace
}  // namespace cohere2_moe

constinit const Family kCohere2MoeFamily = {.architecture = "Cohere2MoeForCausalLM",
                                            .models = "Command-A+",
                                            .describe = cohere2_moe::describe,
                                            .experts = {.defaults = cohere2_moe::kDefaults,
                                                        .intermediate_size = cohere2_moe::kSize,
                                                        .score_keys = cohere2_moe::kScore,
                                                        .softmax = Score::kTopkThenSoftmax,
                                                        .gguf = cohere2_moe::kGguf}};

}  // namespace moracle
