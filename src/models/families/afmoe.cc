// Trinity (AFMoE): GQA with norms on q and k and a gate on the output. Layers with a window use
// RoPE, the others none. Norms before and after attention and experts. Dense first layers, sigmoid
// routing with a correction bias, shared experts.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace afmoe {
namespace {

// The defaults of transformers' AfmoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 200192, "hidden_size": 2048, "intermediate_size": 6144,
  "moe_intermediate_size": 1408, "num_hidden_layers": 32, "num_dense_layers": 1,
  "num_attention_heads": 16, "head_dim": 128, "hidden_act": "silu",
  "max_position_embeddings": 16384, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts": 64, "num_experts_per_tok": 6, "num_shared_experts": 2, "route_scale": 1.0,
  "global_attn_every_n_layers": 4, "sliding_window": 1024, "mup_enabled": false,
  "attention_bias": false, "rope_theta": 10000.0
})";

constexpr const char* kRouteScale[] = {"route_scale"};
constexpr std::string_view kBias = "model.layers.{L}.mlp.expert_bias";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  std::vector<int64_t> windows;
  int64_t dense_layers = 0, dense_intermediate = 0, shared_intermediate = 0;
};

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(const bool scaled, config.boolean_or(false, {"mup_enabled"}));
  if (scaled)
    spec.decoder.embedding_scale = std::sqrt(static_cast<float>(spec.decoder.hidden_size));
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false));
  spec.heads.output_gate = OutputGate::kAfterValues;
  MORACLE_TRY(const bool biased, config.boolean_or(false, {"attention_bias"}));
  if (biased) return config.unsupported({"attention_bias"}, "false", "it is true");
  MORACLE_TRY(const int64_t window, config.integer({"sliding_window"}, 1));
  MORACLE_TRY(const int64_t every, config.integer({"global_attn_every_n_layers"}, 1));
  MORACLE_TRY(spec.windows, read_windows(config, window, num_layers,
                                         [&](int64_t layer) { return (layer + 1) % every != 0; }));
  MORACLE_TRY(spec.dense_layers, config.integer({"num_dense_layers"}, 0));
  MORACLE_TRY(spec.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(const int64_t num_shared, config.integer({"num_shared_experts"}, 0, 1 << 10));
  MORACLE_TRY(const int64_t one, config.integer({"moe_intermediate_size"}, 1, 1 << 20));
  spec.shared_intermediate = num_shared * one;
  // transformers ignores groups of experts.
  for (const char* key : {"n_group", "topk_group"}) {
    MORACLE_TRY(const int64_t groups, config.integer_or(1, {key}, 1));
    if (groups != 1) return config.unsupported({key}, "1", str("it is ", groups));
  }
  if (config.has({"route_scale"})) return spec;
  return config.wrong({"route_scale"}, "a number", "it is missing");
}

Result<GroupedQueryDescription> describe_attention(const Checkpoint& checkpoint,
                                                   const std::string& prefix, const Spec& spec,
                                                   int64_t window) {
  GroupedQuerySpec heads = spec.heads;
  heads.window = window;
  if (window == 0) rotate_nothing(heads.rotary);
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix, spec.decoder, heads));
  MORACLE_CHECK(describe_head_norms(checkpoint, prefix, spec.decoder, attention));
  return attention;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const DecoderSpec& decoder = spec.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer), mlp = prefix + "mlp";
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, decoder.hidden_size, decoder);
  };
  MORACLE_TRY(auto input_norm, norm("input_layernorm"));
  MORACLE_TRY(auto attention_output_norm, norm("post_attention_layernorm"));
  MORACLE_TRY(auto post_norm, norm("pre_mlp_layernorm"));
  MORACLE_TRY(auto mlp_output_norm, norm("post_mlp_layernorm"));
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_attention(checkpoint, prefix + "self_attn.", spec,
                                 spec.windows[static_cast<size_t>(layer)]));
  const auto finish = [&](LayerDescription&& described) {
    described.attention_output.norm = std::move(attention_output_norm);
    described.mlp_output.norm = std::move(mlp_output_norm);
    return std::move(described);
  };
  if (layer < spec.dense_layers) {
    MORACLE_TRY(DescribedWeights weights,
                describe_dense_mlp(checkpoint, mlp, decoder, spec.dense_intermediate));
    return finish({std::move(input_norm),
                   std::move(post_norm),
                   std::move(attention),
                   {},
                   std::move(weights)});
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, mlp + ".router.gate", experts.spec,
                              of_layer(checkpoint.state(), kBias, layer)));
  LayerDescription described{std::move(input_norm), std::move(post_norm), std::move(attention),
                             std::move(router), std::move(experts)};
  if (spec.shared_intermediate > 0) {
    MORACLE_TRY(described.shared, describe_shared_expert(checkpoint, mlp + ".shared_experts", "",
                                                         decoder, spec.shared_intermediate));
  }
  return finish(std::move(described));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_count", "num_shared_experts"},
    {"leading_dense_block_count", "num_dense_layers", false},
    {"expert_weights_scale", "route_scale", false},
    {"attention.sliding_window", "sliding_window"},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.attn_gate", "model.layers.{L}.self_attn.gate_proj"},
    {"blk.{L}.post_attention_norm", "model.layers.{L}.post_attention_layernorm"},
    {"blk.{L}.ffn_norm", "model.layers.{L}.pre_mlp_layernorm"},
    {"blk.{L}.post_ffw_norm", "model.layers.{L}.post_mlp_layernorm"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.mlp.router.gate"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.expert_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.mlp.shared_experts.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.mlp.shared_experts.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.mlp.shared_experts.down_proj"},
};
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(require_renormalized(model));
  return set_layer_types(model, 4);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  put_gguf(draft, "expert_weights_norm", true);
  return put_window_pattern(draft);
}
// llama.cpp always scales the embedding of this architecture.
constexpr GgufConvention kGguf[] = {
    {.architecture = "afmoe",
     .keys = kGgufKeys,
     .tensors = kGgufTensors,
     .constants = R"({"mup_enabled": true, "num_dense_layers": 0, "route_scale": 1.0})",
     .finish = finish_gguf,
     .write = write_gguf}};

}  // namespace
}  // namespace afmoe

constinit const Family kAfmoeFamily = {.architecture = "AfmoeForCausalLM",
                                       .models = "Trinity",
                                       .describe = afmoe::describe,
                                       .experts = {.defaults = afmoe::kDefaults,
                                                   .score = Score::kSigmoid,
                                                   .renormalize = true,
                                                   .renormalize_keys = {},
                                                   .scaling_factor = afmoe::kRouteScale,
                                                   .correction_bias = afmoe::kBias,
                                                   .gguf = afmoe::kGguf}};

}  // namespace moracle
