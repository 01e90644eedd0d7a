// Gemma-4 MoE: GQA whose layers without a window have other head sizes and may use keys as values;
// norms on q, k and v. Each layer adds experts to a dense MLP, each with its own norms, and scales
// the residual stream at its end. Logits are capped.
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace gemma4 {
namespace {

// The defaults of transformers' Gemma4TextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "attention_bias": false,
  "sliding_window": 512, "hidden_size_per_layer_input": 256, "attention_k_eq_v": false,
  "num_kv_shared_layers": 0, "enable_moe_block": false,
  "global_head_dim": 512,
  "rope_parameters": {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {
      "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0
    }
  }
})";

constexpr ExpertNames kNames[] = {
    {.experts = "model.layers.{L}.experts", .fused = true},
    {"model.layers.{L}.experts", "gate_proj", "up_proj", "down_proj"}};
constexpr const char* kTopK[] = {"top_k_experts"};
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

struct Spec {
  DecoderSpec decoder;
  std::vector<GroupedQuerySpec> layers;
  int64_t mlp_intermediate = 0;
  bool biased = false;
};

// What dense models of this architecture have, and masks of other tasks.
Status refuse_others(const Config& config) {
  MORACLE_TRY(const bool experts, config.boolean_or(false, {"enable_moe_block"}));
  if (!experts)
    return config.unsupported({"enable_moe_block"}, "true, a model with experts", "it is false");
  MORACLE_TRY(const int64_t inputs, config.integer_or(0, {"hidden_size_per_layer_input"}));
  if (inputs != 0)
    return config.unsupported({"hidden_size_per_layer_input"}, "0", str("it is ", inputs));
  MORACLE_TRY(const int64_t shared, config.integer_or(0, {"num_kv_shared_layers"}));
  if (shared != 0) return config.unsupported({"num_kv_shared_layers"}, "0", str("it is ", shared));
  MORACLE_TRY(const std::string both, config.text_or("vision", {"use_bidirectional_attention"}));
  if (both != "vision")
    return config.unsupported({"use_bidirectional_attention"}, "null or vision", "it is " + both);
  return {};
}

Result<DecoderSpec> read_decoder(const Config& config) {
  MORACLE_TRY(DecoderSpec spec, read_decoder_spec(config));
  const std::string needed = "gelu_pytorch_tanh";
  MORACLE_TRY(const std::string activation, config.text({"hidden_activation"}));
  if (activation != needed)
    return config.unsupported({"hidden_activation"}, needed, "it is " + activation);
  spec.activation = Activation::kGeluTanh;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  MORACLE_TRY(const double cap, config.number_or(0, {"final_logit_softcapping"}));
  if (!(cap >= 0 && cap <= 1e6)) {
    return config.wrong({"final_logit_softcapping"}, "a number from 0 to 1000000",
                        str("it is ", cap));
  }
  spec.logit_cap = static_cast<float>(cap);
  return spec;
}

// RoPE of one kind of layer.
Result<Rotary> read_rope(const Config& config, const char* kind, int64_t dim) {
  MORACLE_TRY(const auto kinds, rotary_settings(config));
  if (!kinds) return config.wrong({"rope_parameters"}, "an object", "it is missing");
  MORACLE_TRY(const auto rope, kinds->object({kind}));
  if (!rope) return kinds->wrong({kind}, "an object", "it is missing");
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, rope, dim, {}));
  return std::move(read.rotary);
}

// Layers without a window have sizes of their own: under keys of their own, or for each layer
// (transformers from 5.20).
Status read_sizes_of_layer(const Config& config, int64_t layer, bool full, GroupedQuerySpec& spec) {
  MORACLE_TRY(const auto layers, config.object({"per_layer_config"}));
  if (layers) {
    const std::string number = str(layer);
    MORACLE_TRY(const auto own, layers->object({number.c_str()}));
    if (!own) return {};
    for (const auto& [key, value] : own->value().items()) {
      if (key != "head_dim" && key != "num_key_value_heads")
        return own->unsupported({key.c_str()}, "head_dim and num_key_value_heads only",
                                "it is set");
    }
    MORACLE_TRY(spec.head_dim, own->integer_or(spec.head_dim, {"head_dim"}, 2, 1 << 16));
    MORACLE_TRY(spec.num_kv_heads,
                own->integer_or(spec.num_kv_heads, {"num_key_value_heads"}, 1, spec.num_heads));
    return {};
  }
  if (!full) return {};
  MORACLE_TRY(spec.head_dim, config.integer({"global_head_dim"}, 2, 1 << 16));
  if (!spec.values_are_keys) return {};
  MORACLE_TRY(
      spec.num_kv_heads,
      config.integer_or(spec.num_kv_heads, {"num_global_key_value_heads"}, 1, spec.num_heads));
  return {};
}

Result<GroupedQuerySpec> read_layer(const Config& config, const DecoderSpec& decoder, int64_t layer,
                                    int64_t window) {
  const bool full = window == 0;
  GroupedQuerySpec spec{.window = window, .norm_epsilon = decoder.norm_epsilon, .scale = 1};
  spec.value_norm = true;
  MORACLE_TRY(const bool keys, config.boolean_or(false, {"attention_k_eq_v"}));
  spec.values_are_keys = keys && full;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(spec.num_kv_heads, config.integer({"num_key_value_heads"}, 1, spec.num_heads));
  MORACLE_TRY(spec.head_dim, config.integer({"head_dim"}, 2, 1 << 16));
  MORACLE_CHECK(read_sizes_of_layer(config, layer, full, spec));
  if (spec.head_dim % 2 != 0)
    return config.wrong({"head_dim"}, "an even number", str("it is ", spec.head_dim));
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return config.wrong({"num_key_value_heads"}, str("a divisor of ", spec.num_heads, " heads"),
                        str("it is ", spec.num_kv_heads));
  }
  MORACLE_TRY(spec.rotary, read_rope(config, full ? kFull : kSliding, spec.head_dim));
  return spec;
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  MORACLE_CHECK(refuse_others(config));
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder(config));
  MORACLE_TRY(spec.mlp_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  MORACLE_TRY(const int64_t window, config.integer({"sliding_window"}, 1));
  MORACLE_TRY(
      std::vector<int64_t> windows,
      read_windows(config, window, num_layers, [](int64_t layer) { return (layer + 1) % 6 != 0; }));
  windows.back() = 0;  // transformers ignores layer_types here
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    MORACLE_TRY(GroupedQuerySpec heads,
                read_layer(config, spec.decoder, layer, windows[static_cast<size_t>(layer)]));
    spec.layers.push_back(std::move(heads));
  }
  return spec;
}

// The router's input is RMSNorm of the residual, times its scales / sqrt(hidden_size).
Result<RouterDescription> describe_scaled_router(const Checkpoint& checkpoint,
                                                 const std::string& prefix,
                                                 const DescribedWeights& experts,
                                                 BesideMlp& norms) {
  const int64_t hidden = experts.spec.hidden_size;
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "router.proj", experts.spec));
  MORACLE_TRY(norms.router_norm, checkpoint.vector(prefix + "router.scale", hidden));
  for (float& weight : norms.router_norm) weight /= std::sqrt(static_cast<float>(hidden));
  MORACLE_TRY(router.expert_scales,
              checkpoint.vector(prefix + "router.per_expert_scale", experts.spec.num_experts));
  return router;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const DecoderSpec& decoder = spec.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer), attn = prefix + "self_attn.";
  const auto norm = [&](const char* name) {
    return describe_norm(checkpoint, prefix + name, decoder.hidden_size, decoder);
  };
  MORACLE_TRY(auto input_norm, norm("input_layernorm"));
  MORACLE_TRY(auto mlp_norm, norm("pre_feedforward_layernorm"));
  MORACLE_TRY(
      GroupedQueryDescription attention,
      describe_grouped_query(checkpoint, attn, decoder, spec.layers[static_cast<size_t>(layer)],
                             {spec.biased, spec.biased}));
  MORACLE_CHECK(describe_head_norms(checkpoint, attn, decoder, attention));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  BesideMlp norms;
  MORACLE_TRY(RouterDescription router, describe_scaled_router(checkpoint, prefix, experts, norms));
  LayerDescription described{std::move(input_norm), std::move(mlp_norm), std::move(attention),
                             std::move(router), std::move(experts)};
  MORACLE_TRY(described.shared, describe_shared_expert(checkpoint, prefix + "mlp", "", decoder,
                                                       spec.mlp_intermediate));
  MORACLE_TRY(described.attention_output.norm, norm("post_attention_layernorm"));
  MORACLE_TRY(described.mlp_output.norm, norm("post_feedforward_layernorm"));
  MORACLE_TRY(norms.experts_norm, norm("pre_feedforward_layernorm_2"));
  MORACLE_TRY(norms.experts_output_norm, norm("post_feedforward_layernorm_2"));
  MORACLE_TRY(norms.mlp_output_norm, norm("post_feedforward_layernorm_1"));
  described.beside_mlp = std::move(norms);
  MORACLE_TRY(const std::vector<float> scale, checkpoint.vector(prefix + "layer_scalar", 1));
  described.mlp_output.sum_scale = scale[0];
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kGgufKeys[] = {
    {"expert_used_count", "top_k_experts"},
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "global_head_dim"},
    {"attention.value_length", "global_head_dim", false, true},
    {"rope.dimension_count", "global_head_dim", false, true},
    {"attention.key_length_swa", "head_dim"},
    {"attention.value_length_swa", "head_dim", false, true},
    {"rope.dimension_count_swa", "head_dim", false, true},
    {"attention.sliding_window", "sliding_window"},
    {"attention.sliding_window_pattern", "layer_types"},  // until finish_gguf names them
    {"rope.freq_base", "rope_parameters.full_attention.rope_theta"},
    {"rope.freq_base_swa", "rope_parameters.sliding_attention.rope_theta"},
    {"final_logit_softcapping", "final_logit_softcapping", false},
    {"embedding_length_per_layer_input", "hidden_size_per_layer_input", false},
    {"attention.shared_kv_layers", "num_kv_shared_layers", false},
};
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.post_attention_norm", "model.layers.{L}.post_attention_layernorm"},
    {"blk.{L}.ffn_norm", "model.layers.{L}.pre_feedforward_layernorm"},
    {"blk.{L}.pre_ffw_norm_2", "model.layers.{L}.pre_feedforward_layernorm_2"},
    {"blk.{L}.post_ffw_norm", "model.layers.{L}.post_feedforward_layernorm"},
    {"blk.{L}.post_ffw_norm_1", "model.layers.{L}.post_feedforward_layernorm_1"},
    {"blk.{L}.post_ffw_norm_2", "model.layers.{L}.post_feedforward_layernorm_2"},
    {"blk.{L}.layer_output_scale.weight", "model.layers.{L}.layer_scalar"},
    {"blk.{L}.ffn_gate_inp.weight", "model.layers.{L}.router.proj.weight"},
    {"blk.{L}.ffn_gate_inp.scale", "model.layers.{L}.router.scale"},
    {"blk.{L}.ffn_down_exps.scale", "model.layers.{L}.router.per_expert_scale"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.experts.{E}.gate_proj",
     "model.layers.{L}.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.experts.{E}.down_proj"},
};

bool has_experts(const Config&, const Tensors& stored) {
  return has_stored(stored, ".ffn_gate_inp.weight");
}

// Heads of keys: one number, or one for each layer. Layers without a window get their own sizes.
Status set_sizes_of_layers(GgufModel& model) {
  nlohmann::json& config = model.config;
  const nlohmann::json heads = config["num_key_value_heads"], types = config["layer_types"];
  const std::string key = gguf_key(model, "attention.head_count_kv");
  const auto layers = config["num_hidden_layers"].get<size_t>();
  if (heads.is_array() && heads.size() < layers)
    return model.metadata.wrong({key.c_str()}, str("one number for each of ", layers, " layers"),
                                str("it has ", heads.size()));
  nlohmann::json own = nlohmann::json::object();
  for (size_t layer = 0; layer < layers; ++layer) {
    const nlohmann::json& count = heads.is_array() ? heads[layer] : heads;
    if (!heads.is_array() || types[layer] != kFull) config["num_key_value_heads"] = count;
    if (types[layer] == kFull)
      own[str(layer)] = {{"head_dim", config["global_head_dim"]}, {"num_key_value_heads", count}};
  }
  for (size_t layer = 0; layer < layers && heads.is_array(); ++layer) {
    if (types[layer] != kFull && heads[layer] != config["num_key_value_heads"])
      return model.metadata.unsupported({key.c_str()}, "one number for all layers with a window",
                                        "they differ");
  }
  config["per_layer_config"] = std::move(own);
  config.erase("global_head_dim");
  return {};
}

Status finish_gguf(GgufModel& model) {
  nlohmann::json& config = model.config;
  MORACLE_CHECK(set_layer_types(model, 6));
  MORACLE_CHECK(set_sizes_of_layers(model));
  const auto& types = config["layer_types"];
  for (size_t layer = 0; layer < types.size(); ++layer) {
    const std::string values = str("blk.", layer, ".attn_v.weight");
    if (types[layer] == kFull && model.stored.find(values) == nullptr)
      config["attention_k_eq_v"] = true;
  }
  // The parts of heads that do not rotate have huge divisors.
  const std::string divisors = "rope_freqs.weight";
  MORACLE_TRY(const std::vector<float> values, gguf_values(model, divisors));
  model.tensors.erase(divisors);
  config["rope_parameters"]["full_attention"]["frequency_divisors"] = values;
  set_attention_bias(model);
  return {};
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_window_pattern(draft));
  const Config& config = draft.config;
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  nlohmann::json heads = nlohmann::json::array();
  int64_t dim = 0;
  for (size_t layer = 0; layer < types.size(); ++layer) {
    GroupedQuerySpec spec;
    MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
    MORACLE_TRY(spec.num_kv_heads, config.integer({"num_key_value_heads"}, 1, 1 << 16));
    MORACLE_TRY(spec.head_dim, config.integer({"head_dim"}, 2, 1 << 16));
    const bool full = types[layer] == kFull;
    MORACLE_CHECK(read_sizes_of_layer(config, static_cast<int64_t>(layer), full, spec));
    heads.push_back(spec.num_kv_heads);
    if (full) dim = spec.head_dim;
  }
  put_gguf(draft, "attention.head_count_kv", std::move(heads));
  for (const char* key : {"attention.key_length", "attention.value_length", "rope.dimension_count"})
    put_gguf(draft, key, dim);
  MORACLE_TRY(const auto kinds, rotary_settings(config));
  if (!kinds) return config.wrong({"rope_parameters"}, "an object", "it is missing");
  MORACLE_TRY(draft.rope, kinds->object({kFull}));
  return put_rotary_divisors(draft, dim);
}
constexpr GgufConvention kGguf[] = {
    {.architecture = "gemma4",
     .keys = kGgufKeys,
     .tensors = kGgufTensors,
     .usual_heads = false,
     .constants = R"({"enable_moe_block": true, "hidden_size_per_layer_input": 0})",
     .applies = has_experts,
     .finish = finish_gguf,
     .write = write_gguf}};

}  // namespace
}  // namespace gemma4

constinit const Family kGemma4Family = {.architecture = "Gemma4ForCausalLM",
                                        .multimodal = "Gemma4ForConditionalGeneration",
                                        .models = "Gemma-4 MoE",
                                        .notes = "text only",
                                        .describe = gemma4::describe,
                                        .experts = {.defaults = gemma4::kDefaults,
                                                    .names = gemma4::kNames,
                                                    .top_k = gemma4::kTopK,
                                                    .score = Score::kSoftmax,
                                                    .renormalize = true,
                                                    .renormalize_keys = {},
                                                    .scaling_factor = {},
                                                    .expert_scales = true,
                                                    .activation = Activation::kGeluTanh,
                                                    .gguf = gemma4::kGguf}};

}  // namespace moracle
