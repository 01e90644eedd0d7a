// MiMo-V2-Flash: GQA with values narrower than keys, and a factor on them. Layers with a window
// have twice the heads of keys, one sink per head and a RoPE of their own. Dense first layer,
// sigmoid routing with a correction bias. The layers for multi-token prediction have a window and
// no experts.
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
namespace mimo_v2_flash {
namespace {

// The defaults of transformers' MiMoV2FlashConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 152576, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 48,
  "num_attention_heads": 64, "num_key_value_heads": 4, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "attention_bias": false, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
  "n_routed_experts": 256, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
  "norm_topk_prob": true, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129,
  "attention_value_scale": 0.707,
  "rope_parameters": {
    "full_attention": {
      "rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": 0.334
    },
    "sliding_attention": {
      "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.334
    }
  }
})";

struct Spec {
  DecoderSpec decoder;
  std::vector<GroupedQuerySpec> heads;  // by layer
  SharedMoeSpec moe;
  float value_scale = 1;
  bool biased = false;
};

// transformers does not read most keys of published files. Each must agree with what it computes.
Status check_published_keys(const Config& config, const Spec& spec) {
  const auto number = [&](const char* key, double used) -> Status {
    MORACLE_TRY(const double stored, config.number_or(used, {key}));
    if (stored == used) return {};
    return config.unsupported({key}, str(used, ", which transformers uses"), str("it is ", stored));
  };
  const auto layers = [&](const char* key, const auto& is_one) -> Status {
    MORACLE_TRY(const std::vector<int64_t> stored, config.integers({key}));
    for (size_t l = 0; l < stored.size() && l < spec.heads.size(); ++l) {
      if ((stored[l] != 0) != is_one(l))
        return config.unsupported({key}, str(is_one(l) ? 1 : 0, ", which transformers uses"),
                                  str("it is ", stored[l], " for layer ", l));
    }
    return {};
  };
  MORACLE_CHECK(number("layernorm_epsilon", *config.number({"rms_norm_eps"})));
  MORACLE_CHECK(layers("hybrid_layer_pattern", [&](size_t l) { return spec.heads[l].window > 0; }));
  MORACLE_CHECK(layers("moe_layer_freq",
                       [&](size_t l) { return !spec.moe.is_dense(static_cast<int64_t>(l)); }));
  for (const GroupedQuerySpec& heads : spec.heads) {
    const bool windowed = heads.window > 0;
    MORACLE_CHECK(require_flag(
        config, windowed ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias",
        windowed));
    const auto rope = rotary_settings(config);
    if (!rope || !*rope) continue;
    MORACLE_TRY(const auto own,
                (*rope)->object({windowed ? "sliding_attention" : "full_attention"}));
    MORACLE_TRY(const double theta, own->number_or(0, {"rope_theta"}));
    MORACLE_TRY(const double part, own->number_or(0.334, {"partial_rotary_factor"}));
    MORACLE_CHECK(number(windowed ? "swa_rope_theta" : "rope_theta", theta));
    MORACLE_CHECK(number("partial_rotary_factor", part));
    if (!windowed) continue;
    MORACLE_CHECK(number("swa_num_attention_heads", static_cast<double>(heads.num_heads)));
    MORACLE_CHECK(number("swa_num_key_value_heads", static_cast<double>(heads.num_kv_heads)));
    MORACLE_CHECK(number("swa_head_dim", static_cast<double>(heads.head_dim)));
    MORACLE_CHECK(number("swa_v_head_dim", static_cast<double>(heads.value_dim)));
  }
  MORACLE_TRY(const std::string method, config.text_or("noaux_tc", {"topk_method"}));
  if (method != "noaux_tc")
    return config.unsupported({"topk_method"}, "noaux_tc", "it is " + method);
  return require_score(config, "sigmoid");
}

// Layers with a window, in a configuration without layer_types.
bool is_windowed(int64_t layer) {
  return layer != 0 && (layer + 1) % 6 != 0;
}

Result<std::vector<GroupedQuerySpec>> read_layers(const Config& config, const DecoderSpec& decoder,
                                                  int64_t num_layers) {
  // The published window counts only the tokens before, and its key comes first.
  MORACLE_TRY(const int64_t before, config.integer_or(0, {"sliding_window_size"}, 1, 1 << 30));
  MORACLE_TRY(std::vector<GroupedQuerySpec> layers,
              read_windowed_layers(config, decoder, num_layers, is_windowed,
                                   {.partial = true, .fraction = 0.334}));
  MORACLE_TRY(const int64_t value_dim, config.integer({"v_head_dim"}, 1, 1 << 16));
  for (GroupedQuerySpec& heads : layers) {
    heads.value_dim = value_dim;
    if (heads.window == 0) continue;
    if (before > 0) heads.window = before + 1;
    heads.num_kv_heads *= 2;
    if (heads.num_heads % heads.num_kv_heads != 0) {
      return config.wrong({"num_key_value_heads"},
                          str("half of a divisor of ", heads.num_heads, " heads"),
                          str("it is ", heads.num_kv_heads / 2));
    }
  }
  return layers;
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.heads, read_layers(config, spec.decoder, num_layers));
  MORACLE_TRY(const double scale, config.number_or(1, {"attention_value_scale"}));
  if (!(std::abs(scale) <= 1e6))
    return config.wrong({"attention_value_scale"}, "a finite number", str("it is ", scale));
  spec.value_scale = static_cast<float>(scale);
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  spec.moe.dense_layers = 1;
  MORACLE_TRY(spec.moe.dense_intermediate, config.integer({"intermediate_size"}, 1, 1 << 24));
  MORACLE_CHECK(read_mlp_layer_types(config, num_layers, spec.moe));
  MORACLE_CHECK(check_published_keys(config, spec));
  return spec;
}

// The layer behind the last one: windowed attention and a dense MLP.
Status add_next_tokens(const Config& config, Spec& spec) {
  const auto windowed =
      std::find_if(spec.heads.begin(), spec.heads.end(),
                   [](const GroupedQuerySpec& heads) { return heads.window > 0; });
  if (windowed == spec.heads.end()) {
    return config.unsupported({"layer_types"},
                              "a layer with a window, as layers for multi-token prediction have",
                              "it has none");
  }
  const GroupedQuerySpec heads = *windowed;
  spec.moe.dense.assign(spec.heads.size() + 1, true);
  spec.heads.push_back(heads);
  return {};
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  if (checkpoint.describes_next_tokens())
    MORACLE_CHECK(add_next_tokens(checkpoint.state().config, spec));
  const auto describe_layer = [&](int64_t layer) -> Result<LayerDescription> {
    const std::string self_attn = layer_prefix(checkpoint, layer) + "self_attn.";
    const GroupedQuerySpec& heads = spec.heads[static_cast<size_t>(layer)];
    MORACLE_TRY(GroupedQueryDescription attention,
                describe_grouped_query(checkpoint, self_attn, spec.decoder, heads, {spec.biased}));
    if (heads.window > 0) {
      MORACLE_TRY(attention.sinks,
                  checkpoint.vector(self_attn + "attention_sink_bias", heads.num_heads));
    }
    MORACLE_TRY(
        LayerDescription described,
        describe_shared_moe_layer(checkpoint, spec.decoder, spec.moe, layer, std::move(attention)));
    // Attention is linear in its values, and its output layer has no bias.
    described.attention_output.scale = spec.value_scale;
    return described;
  };
  MORACLE_TRY(Description description, describe_decoder(checkpoint, spec.decoder, describe_layer));
  // The publisher's server hands over the hidden state before the last norm.
  if (description.join) description.join->before_norm = true;
  return description;
}

constexpr GgufKey kOwnGgufKeys[] = {
    {"attention.head_count_kv", "num_key_value_heads"},  // until finish_gguf takes one
    {"attention.value_length", "v_head_dim"},
    {"attention.value_scale", "attention_value_scale", false},
    {"feed_forward_length", "intermediate_size", false},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_weights_scale", "routed_scaling_factor", false},
    {"expert_group_count", "n_group", false},
    {"expert_group_used_count", "topk_group", false},
};
constexpr auto kGgufKeys = joined(kOwnGgufKeys, kWindowedGgufKeys);
constexpr GgufTensor kGgufTensors[] = {
    {"blk.{L}.attn_sinks.weight", "model.layers.{L}.self_attn.attention_sink_bias"},
    {"blk.{L}.exp_probs_b.bias", "model.layers.{L}.mlp.gate.e_score_correction_bias"},
    // The converter's name for the last norm of a layer for multi-token prediction.
    {"blk.{L}.layer_output_norm", "model.layers.{L}.shared_head.norm"},
};
// One number for each layer: twice as many where there is a window.
Status set_kv_heads(GgufModel& model) {
  nlohmann::json& heads = model.config["num_key_value_heads"];
  const std::string key = gguf_key(model, "attention.head_count_kv");
  const nlohmann::json types = model.config["layer_types"];
  const auto count = [&](size_t layer) { return heads.is_array() ? heads[layer] : heads; };
  const auto wrong = [&] {
    return model.metadata.wrong({key.c_str()}, "twice the heads in layers with a window",
                                "it has others");
  };
  if (heads.is_array() && heads.size() < types.size()) return wrong();
  int64_t without = 0;
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (!count(layer).is_number_integer()) return wrong();
    const auto own = count(layer).get<int64_t>();
    const bool window = types[layer] == "sliding_attention";
    if (window && own % 2 != 0) return wrong();
    const int64_t one = window ? own / 2 : own;
    if (without != 0 && one != without) return wrong();
    without = one;
  }
  heads = without;
  return {};
}
Status finish_gguf(GgufModel& model) {
  MORACLE_CHECK(require_gating(model, GgufGating::kSigmoid));
  MORACLE_CHECK(set_layer_types(model, 6));
  MORACLE_CHECK(set_kv_heads(model));
  set_layers_without_experts(model);
  set_attention_bias(model);
  return set_windowed_rotary(model);
}
Status write_gguf(GgufDraft& draft) {
  MORACLE_CHECK(put_sigmoid_gating(draft));
  MORACLE_CHECK(put_windowed(draft));
  const Config& config = draft.config;
  MORACLE_TRY(const int64_t value_dim, config.integer({"v_head_dim"}, 1, 1 << 16));
  put_gguf(draft, "attention.value_length", value_dim);
  MORACLE_TRY(const int64_t before, config.integer_or(0, {"sliding_window_size"}, 1, 1 << 30));
  if (before > 0) put_gguf(draft, "attention.sliding_window", before + 1);
  MORACLE_TRY(const int64_t heads, config.integer({"num_key_value_heads"}, 1, 1 << 15));
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  nlohmann::json counts = nlohmann::json::array(), pattern = nlohmann::json::array();
  for (int64_t layer = 0; layer < draft.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const bool window = l < types.size() ? types[l] == "sliding_attention" : is_windowed(layer);
    counts.push_back(window ? 2 * heads : heads);
    pattern.push_back(window);
  }
  put_gguf(draft, "attention.head_count_kv", std::move(counts));
  put_gguf(draft, "attention.sliding_window_pattern", std::move(pattern));
  return {};
}
// llama.cpp renormalizes weights of this architecture.
constexpr GgufConvention kGguf[] = {
    {.architecture = "mimo2",
     .keys = kGgufKeys,
     .tensors = kGgufTensors,
     .usual_heads = false,
     .constants = R"({"attention_value_scale": 1.0, "norm_topk_prob": true,
                      "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1})",
     .finish = finish_gguf,
     .write = write_gguf}};

}  // namespace
}  // namespace mimo_v2_flash

constinit const Family kMimoV2FlashFamily = {.architecture = "MiMoV2FlashForCausalLM",
                                             .models = "MiMo-V2-Flash",
                                             .notes = "multi-token prediction drafts",
                                             .describe = mimo_v2_flash::describe,
                                             .experts = {.defaults = mimo_v2_flash::kDefaults,
                                                         .score = Score::kSigmoid,
                                                         .gguf = mimo_v2_flash::kGguf}};

}  // namespace moracle
