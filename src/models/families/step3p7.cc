// Step-3.7-Flash: GQA with norms on q and k and a sigmoid gate for each head. Layers with a window
// may have more heads, and a RoPE of their own. Dense first layers, sigmoid routing with a
// correction bias, a shared expert. The activations of some layers are clamped. The layers for
// multi-token prediction are not run.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/family.h"
#include "models/families/shared_moe.h"
#include "models/gguf/gguf_drafts.h"
#include "models/gguf/gguf_families.h"

namespace moracle {
namespace step3p7 {
namespace {

// The defaults of transformers' Step3p7TextConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 128815, "hidden_size": 4096, "intermediate_size": 11264, "num_hidden_layers": 45,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
  "max_position_embeddings": 128000, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "n_routed_experts": 288,
  "share_expert_dim": 1280, "attention_bias": false, "moe_router_scaling_factor": 1.0,
  "mlp_bias": false
})";

constexpr ExpertNames kNames[] = {{.experts = "model.layers.{L}.moe",
                                   .gate = "gate_proj.weight",
                                   .up = "up_proj.weight",
                                   .down = "down_proj.weight",
                                   .fused = true}};
constexpr const char* kNumExperts[] = {"n_routed_experts", "moe_num_experts", "num_experts",
                                       "num_local_experts"};
constexpr const char* kTopK[] = {"num_experts_per_tok", "moe_top_k"};
constexpr const char* kScale[] = {"moe_router_scaling_factor"};
constexpr std::string_view kBias = "model.layers.{L}.moe.router_bias";

struct Spec {
  DecoderSpec decoder;
  std::vector<GroupedQuerySpec> heads;  // by layer
  std::vector<bool> dense;
  std::vector<float> shared_limits;  // of dense MLPs and shared experts
  int64_t dense_intermediate = 0, shared_intermediate = 0;
};

// Both keys hold a number for each layer, then for the layers of multi-token prediction. 0 or null
// means no limit.
Result<std::vector<float>> read_limits(const Config& config, const char* key, int64_t num_layers) {
  std::vector<float> limits(static_cast<size_t>(num_layers));
  const nlohmann::json* const stored = config.find({key});
  if (stored == nullptr) return limits;
  const auto wrong = [&] {
    return config.wrong({key}, str("a number from 0 for each of ", num_layers, " layers"),
                        "it has others");
  };
  if (!stored->is_array() || stored->size() < limits.size()) return wrong();
  for (size_t l = 0; l < limits.size(); ++l) {
    const nlohmann::json& limit = (*stored)[l];
    if (limit.is_null()) continue;
    if (!limit.is_number() || !(limit.get<double>() >= 0 && limit.get<double>() <= 1e30))
      return wrong();
    limits[l] = limit.get<float>();
  }
  return limits;
}

void set_limit(DescribedWeights& mlp, float limit) {
  mlp.spec.activation.function = limit > 0 ? Activation::kSwigluStep : Activation::kSilu;
  mlp.spec.activation.limit = limit;
}

// Heads of layers with a window: for each layer, for all of them, or under the key of older files.
Status read_windowed_heads(const Config& config, std::vector<GroupedQuerySpec>& layers) {
  MORACLE_TRY(const auto by_layer, config.object({"per_layer_config"}));
  MORACLE_TRY(const auto older, config.object({"attention_other_setting"}));
  for (size_t l = 0; l < layers.size(); ++l) {
    GroupedQuerySpec& heads = layers[l];
    if (by_layer) {
      const std::string number = str(l);
      MORACLE_TRY(const auto own, by_layer->object({number.c_str()}));
      if (!own) continue;
      for (const auto& [key, value] : own->value().items()) {
        if (key != "num_attention_heads")
          return own->unsupported({key.c_str()}, "num_attention_heads only", "it is set");
      }
      MORACLE_TRY(heads.num_heads,
                  own->integer_or(heads.num_heads, {"num_attention_heads"}, 1, 1 << 16));
    } else if (heads.window > 0) {
      if (older) {
        MORACLE_TRY(heads.num_heads,
                    older->integer_or(heads.num_heads, {"num_attention_heads"}, 1, 1 << 16));
      }
      MORACLE_TRY(heads.num_heads,
                  config.integer_or(heads.num_heads, {"num_sliding_attention_heads"}, 1, 1 << 16));
    }
    if (heads.num_heads % heads.num_kv_heads == 0) continue;
    return config.wrong({"num_sliding_attention_heads"},
                        str("a multiple of ", heads.num_kv_heads, " heads of keys"),
                        str("it is ", heads.num_heads));
  }
  return {};
}

// A list for each layer, and perhaps for those of multi-token prediction.
Result<std::vector<std::string>> read_types(const Config& config, const char* key,
                                            int64_t num_layers) {
  MORACLE_TRY(std::vector<std::string> types, config.texts({key}));
  MORACLE_TRY(const int64_t more, config.integer_or(0, {"num_nextn_predict_layers"}, 0, 1000));
  if (types.empty() || static_cast<int64_t>(types.size()) == num_layers) return types;
  if (static_cast<int64_t>(types.size()) != num_layers + more) {
    return config.wrong({key}, str("one for each of ", num_layers, " layers"),
                        str("it has ", types.size()));
  }
  types.resize(static_cast<size_t>(num_layers));
  return types;
}

// Without mlp_layer_types, older files list the layers with experts: a text, or numbers.
Result<std::vector<bool>> read_dense(const Config& config, int64_t num_layers) {
  MORACLE_TRY(const auto types, read_types(config, "mlp_layer_types", num_layers));
  std::vector<bool> dense;
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse")
      return config.unsupported({"mlp_layer_types"}, "dense and sparse", "it has " + type);
    dense.push_back(type == "dense");
  }
  const nlohmann::json* const stored = config.find({"moe_layers_enum"});
  MORACLE_TRY(const int64_t first, config.integer_or(3, {"first_k_dense_replace"}, 0));
  if (!dense.empty()) return dense;
  for (int64_t layer = 0; layer < num_layers; ++layer) dense.push_back(layer < first);
  if (stored == nullptr) return dense;
  const nlohmann::json sparse =
      stored->is_string()
          ? nlohmann::json::parse("[" + stored->get<std::string>() + "]", nullptr, false)
          : *stored;
  dense.assign(dense.size(), true);
  for (const nlohmann::json& layer : sparse) {
    if (!sparse.is_array() || !layer.is_number_unsigned())
      return config.wrong({"moe_layers_enum"}, "numbers of layers", "it has others");
    if (layer < num_layers) dense[layer.get<size_t>()] = false;
  }
  return dense;
}

// RoPE of the layers of `kind`, the first of which is `layer`: an object of rope_parameters, or
// older keys with a number for each layer. rope_scaling then counts for layers without a window.
Result<Rotary> read_rope(const Config& config, const char* kind, size_t layer, int64_t dim) {
  const RotaryKinds kinds{.partial = true};
  MORACLE_TRY(const auto all, config.object({"rope_parameters"}));
  if (all && all->has({kind})) {
    MORACLE_TRY(const auto own, all->object({kind}));
    MORACLE_TRY(RotaryAndScale read, read_rotary(config, own, dim, kinds));
    return std::move(read.rotary);
  }
  nlohmann::json own = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  for (const auto& [from, to] : {std::pair{"rope_theta", "rope_theta"},
                                 {"partial_rotary_factors", "partial_rotary_factor"}}) {
    const nlohmann::json* const stored = config.find({from});
    if (stored == nullptr) continue;
    if (stored->is_array() && stored->size() <= layer)
      return config.wrong({from}, "a number for each layer", str("it has ", stored->size()));
    own[to] = stored->is_array() ? (*stored)[layer] : *stored;
  }
  MORACLE_TRY(const auto scaling, config.object({"rope_scaling"}));
  if (scaling && kind == std::string_view("full_attention")) own.update(scaling->value());
  MORACLE_TRY(RotaryAndScale read,
              read_rotary(config, Config::from(std::move(own), config.path()), dim, kinds));
  return std::move(read.rotary);
}

Result<std::vector<GroupedQuerySpec>> read_layers(const Config& config, const DecoderSpec& decoder,
                                                  int64_t num_layers) {
  MORACLE_TRY(const GroupedQuerySpec heads, read_heads(config, decoder));
  MORACLE_TRY(const auto types, read_types(config, "layer_types", num_layers));
  std::vector<GroupedQuerySpec> layers(static_cast<size_t>(num_layers), heads);
  for (size_t l = 0; l < layers.size(); ++l) {
    const std::string type = types.empty() ? "full_attention" : types[l];
    if (type != "sliding_attention" && type != "full_attention") {
      return config.unsupported({"layer_types"}, "sliding_attention and full_attention",
                                "it has " + type);
    }
    const auto first = static_cast<size_t>(
        types.empty() ? 0 : std::find(types.begin(), types.end(), type) - types.begin());
    MORACLE_TRY(layers[l].rotary, read_rope(config, type.c_str(), first, heads.head_dim));
    if (type == "full_attention") continue;
    MORACLE_TRY(layers[l].window, config.integer({"sliding_window"}, 1));
  }
  MORACLE_CHECK(read_windowed_heads(config, layers));
  return layers;
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  spec.decoder.norm_offset = 1;
  MORACLE_TRY(spec.heads, read_layers(config, spec.decoder, num_layers));
  MORACLE_CHECK(require_flag(config, "attention_bias", false));
  MORACLE_CHECK(require_flag(config, "mlp_bias", false));
  // Published files have these keys. transformers computes the model as if each was true.
  for (const char* key : {"use_moe_router_bias", "use_head_wise_attn_gate"})
    MORACLE_CHECK(require_flag(config, key, true));
  MORACLE_CHECK(require_score(config, "sigmoid"));
  MORACLE_TRY(const double scalar, config.number_or(0, {"query_pre_attn_scalar"}));
  if (!(scalar >= 0 && scalar <= 1e9)) {
    return config.wrong({"query_pre_attn_scalar"}, "a number above 0", str("it is ", scalar));
  }
  for (GroupedQuerySpec& heads : spec.heads) {
    heads.output_gate = OutputGate::kPerHead;
    if (scalar > 0) heads.scale = static_cast<float>(1 / std::sqrt(scalar));
  }
  MORACLE_TRY(spec.dense, read_dense(config, num_layers));
  MORACLE_TRY(spec.shared_limits, read_limits(config, "swiglu_limits_shared", num_layers));
  MORACLE_TRY(spec.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_TRY(spec.shared_intermediate,
              config.integer({"share_expert_dim", "share_expert_dims"}, 1, 1 << 24));
  return spec;
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  const auto at = static_cast<size_t>(layer);
  const DecoderSpec& decoder = spec.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer), self_attn = prefix + "self_attn.";
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, self_attn, decoder, spec.heads[at],
                                     {.gate_name = "g_proj"}));
  MORACLE_CHECK(describe_head_norms(checkpoint, self_attn, decoder, attention));
  if (spec.dense[at]) {
    MORACLE_TRY(DescribedWeights mlp,
                describe_dense_mlp(checkpoint, prefix + "mlp", decoder, spec.dense_intermediate));
    set_limit(mlp, spec.shared_limits[at]);
    return describe_decoder_layer(checkpoint, decoder, layer, std::move(attention), std::move(mlp));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  experts.spec.routing.correction_bias = true;  // a file without it is incomplete
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, prefix + "moe.gate", experts.spec,
                              of_layer(checkpoint.state(), kBias, layer)));
  MORACLE_TRY(SharedExpertDescription shared,
              describe_shared_expert(checkpoint, prefix + "share_expert", "", decoder,
                                     spec.shared_intermediate));
  set_limit(shared.mlp, spec.shared_limits[at]);
  return describe_decoder_layer(checkpoint, decoder, layer, std::move(attention),
                                std::move(experts), std::move(router), std::move(shared));
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  return describe_decoder(checkpoint, spec.decoder,
                          [&](int64_t layer) { return describe_layer(checkpoint, spec, layer); });
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"attention.head_count", "num_attention_heads"},  // until finish_gguf takes one
    {"feed_forward_length", "intermediate_size"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "share_expert_dim"},
    {"expert_weights_scale", "moe_router_scaling_factor", false},
    {"swiglu_clamp_exp", "swiglu_limits", false},
    {"swiglu_clamp_shexp", "swiglu_limits_shared", false},
};
constexpr auto kGgufKeys = joined(kOwnGgufKeys, kWindowedGgufKeys);
constexpr GgufTensor kGgufTensors[] = {
    {"output_norm", "model.norm", {}, subtract_one, add_one},
    {"blk.{L}.attn_norm", "model.layers.{L}.input_layernorm", {}, subtract_one, add_one},
    {"blk.{L}.ffn_norm", "model.layers.{L}.post_attention_layernorm", {}, subtract_one, add_one},
    {"blk.{L}.attn_q_norm", "model.layers.{L}.self_attn.q_norm", {}, subtract_one, add_one},
    {"blk.{L}.attn_k_norm", "model.layers.{L}.self_attn.k_norm", {}, subtract_one, add_one},
    {"blk.{L}.attn_gate", "model.layers.{L}.self_attn.g_proj"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.moe.gate"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.moe.router_bias"},
    {"blk.{L}.ffn_gate_shexp", "model.layers.{L}.share_expert.gate_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.share_expert.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.share_expert.down_proj"},
};
// One number of heads for each layer, or one for all.
Status set_heads(GgufModel& model) {
  nlohmann::json& config = model.config;
  const nlohmann::json heads = config["num_attention_heads"], types = config["layer_types"];
  if (!heads.is_array()) return {};
  const std::string key = gguf_key(model, "attention.head_count");
  if (heads.size() < types.size())
    return model.metadata.wrong({key.c_str()},
                                str("a number for each of ", types.size(), " layers"),
                                str("it has ", heads.size()));
  config["num_attention_heads"] = heads[0];
  nlohmann::json own = nlohmann::json::object();
  for (size_t layer = 0; layer < types.size(); ++layer)
    own[str(layer)] = {{"num_attention_heads", heads[layer]}};
  config["per_layer_config"] = std::move(own);
  return {};
}
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(require_renormalized(model));
  MORACLE_CHECK(set_layer_types(model, 4, GgufUnwindowed::kFirst));
  MORACLE_CHECK(set_heads(model));
  MORACLE_CHECK(set_leading_dense(model));
  MORACLE_CHECK(set_windowed_rotary(model));
  // llama.cpp rotates half of the columns in layers without a window.
  nlohmann::json& full = model.config["rope_parameters"]["full_attention"];
  full["partial_rotary_factor"] = full["partial_rotary_factor"].get<double>() / 2;
  return {};
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  put_gguf(draft, "expert_weights_norm", true);
  const Config& config = draft.config;
  GroupedQuerySpec heads;
  MORACLE_TRY(heads.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(heads.num_kv_heads,
              config.integer({"num_key_value_heads", "num_attention_groups"}, 1, 1 << 16));
  std::vector<GroupedQuerySpec> layers(static_cast<size_t>(draft.num_layers), heads);
  MORACLE_TRY(const auto types, read_types(config, "layer_types", draft.num_layers));
  for (size_t l = 0; l < types.size(); ++l) layers[l].window = types[l] == "sliding_attention";
  MORACLE_CHECK(read_windowed_heads(config, layers));
  nlohmann::json counts = nlohmann::json::array();
  for (const GroupedQuerySpec& layer : layers) counts.push_back(layer.num_heads);
  put_gguf(draft, "attention.head_count", std::move(counts));
  MORACLE_TRY(const std::vector<bool> dense, read_dense(config, draft.num_layers));
  put_gguf(draft, "leading_dense_block_count",
           std::find(dense.begin(), dense.end(), false) - dense.begin());
  MORACLE_CHECK(put_windowed(draft));
  nlohmann::json& rotated = draft.metadata["step35.rope.dimension_count"];
  rotated = 2 * rotated.get<int64_t>();
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "step35",
                                     .keys = kGgufKeys,
                                     .tensors = kGgufTensors,
                                     .usual_heads = false,
                                     .constants = R"({"moe_router_scaling_factor": 1.0})",
                                     .finish = finish_gguf,
                                     .write = write_gguf}};

}  // namespace
}  // namespace step3p7

constinit const Family kStep3p7Family = {.architecture = "Step3p7ForConditionalGeneration",
                                         .also = "Step3p7FlashForCausalLM",
                                         .multimodal = "Step3p7ForConditionalGeneration",
                                         .models = "Step-3.7-Flash",
                                         .notes = "text only, without multi-token prediction",
                                         .describe = step3p7::describe,
                                         .experts = {.defaults = step3p7::kDefaults,
                                                     .names = step3p7::kNames,
                                                     .num_experts = step3p7::kNumExperts,
                                                     .top_k = step3p7::kTopK,
                                                     .score = Score::kSigmoid,
                                                     .renormalize = true,
                                                     .renormalize_keys = {},
                                                     .scaling_factor = step3p7::kScale,
                                                     .correction_bias = step3p7::kBias,
                                                     .gguf = step3p7::kGguf}};

}  // namespace moracle
