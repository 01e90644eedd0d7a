// Granite-MoE: GQA with a scale of its own. Factors on the embedding, on what layers add to the
// residual, and on the logits. Softmax over the logits of the chosen experts. GraniteMoeShared adds
// a shared expert. Granite-MoE with windows adds a window, a RoPE base and sinks for each layer.
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/families/granite_moe.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {

namespace {
Result<float> read_factor(const Config& config, const char* key) {
  MORACLE_TRY(const double factor, config.number({key}));
  if (factor > 0 && factor <= 1e6) return static_cast<float>(factor);
  return config.wrong({key}, "a number above 0", str("it is ", factor));
}
}  // namespace

Result<GraniteFactors> read_granite_factors(const Config& config, DecoderSpec& decoder) {
  GraniteFactors factors;
  MORACLE_TRY(decoder.embedding_scale, read_factor(config, "embedding_multiplier"));
  MORACLE_TRY(factors.residual, read_factor(config, "residual_multiplier"));
  MORACLE_TRY(factors.logits_divisor, read_factor(config, "logits_scaling"));
  MORACLE_TRY(factors.attention, read_factor(config, "attention_multiplier"));
  return factors;
}

void divide_granite_logits(Description& description, const GraniteFactors& factors) {
  // The output layer is linear: its input may be divided instead of the logits.
  for (float& weight : description.final_norm) weight /= factors.logits_divisor;
}

Result<DescribedWeights> describe_granite_shared_mlp(const Checkpoint& checkpoint,
                                                     const std::string& layer,
                                                     const DecoderSpec& spec,
                                                     int64_t intermediate) {
  // GGUF files have gate and up apart.
  const std::string mlp = layer + "shared_mlp";
  const bool apart =
      checkpoint.state().gguf.has_value() || checkpoint.has_tensor(mlp + ".gate_proj.weight");
  const MlpNames names = apart ? MlpNames{} : MlpNames{"input_linear", nullptr, "output_linear"};
  return describe_dense_mlp(checkpoint, mlp, spec, intermediate, names);
}

namespace granite_moe {
namespace {

// The defaults of transformers' GraniteMoeConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "rope_theta": 10000.0
})";

// The defaults of transformers' GraniteMoeSharedConfig.
constexpr std::string_view kSharedDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "shared_intermediate_size": 0, "rope_theta": 10000.0
})";

// The defaults of transformers' GraniteMoeSWAConfig.
constexpr std::string_view kWindowedDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
  "num_attention_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
  "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
  "attention_multiplier": 1.0, "num_local_experts": 8, "num_experts_per_tok": 2,
  "shared_intermediate_size": 0, "sliding_window": 128, "rope_theta": 10000.0
})";

// transformers' form in memory.
constexpr ExpertNames kWindowedNames[] = {
    {.experts = "model.layers.{L}.block_sparse_moe.experts", .fused = true}};

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  std::vector<GroupedQuerySpec> layers;  // with windows: in place of `heads`
  GraniteFactors factors;
  bool biased = false;
  int64_t shared_intermediate = 0;  // 0: no shared expert
};

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& all,
                                        int64_t layer) {
  const DecoderSpec& spec = all.decoder;
  const std::string prefix = layer_prefix(checkpoint, layer);
  const bool windowed = !all.layers.empty();
  const GroupedQuerySpec& heads = windowed ? all.layers[static_cast<size_t>(layer)] : all.heads;
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix + "self_attn.", spec, heads,
                                     {all.biased, all.biased}));
  if (windowed) {
    MORACLE_TRY(attention.sinks, checkpoint.vector(prefix + "self_attn.sinks", heads.num_heads));
  }
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  const std::string router_name = prefix + "block_sparse_moe.router";
  MORACLE_TRY(
      RouterDescription router,
      describe_router(checkpoint, windowed ? router_name : router_name + ".layer", experts.spec));
  MORACLE_TRY(LayerDescription described,
              describe_decoder_layer(checkpoint, spec, layer, std::move(attention),
                                     std::move(experts), std::move(router)));
  described.attention_output.scale = described.mlp_output.scale = all.factors.residual;
  if (all.shared_intermediate == 0) return described;
  MORACLE_TRY(DescribedWeights shared,
              describe_granite_shared_mlp(checkpoint, prefix, spec, all.shared_intermediate));
  described.shared.emplace(SharedExpertDescription{std::move(shared), {}});
  return described;
}

// A RoPE base of 0 means no RoPE. Without layer_rope_theta, all layers have the common one.
Result<std::vector<GroupedQuerySpec>> read_windowed(const Config& config, const DecoderSpec& spec,
                                                    int64_t num_layers) {
  MORACLE_TRY(GroupedQuerySpec heads, read_grouped_query(config, spec, false));
  MORACLE_TRY(const std::vector<int64_t> windowed,
              read_windows(config, 1, num_layers, [](int64_t layer) { return layer % 4 != 0; }));
  int64_t window = 0;
  if (std::find(windowed.begin(), windowed.end(), 1) != windowed.end()) {
    MORACLE_TRY(window, config.integer({"sliding_window"}, 1));
  }
  std::vector<GroupedQuerySpec> layers(static_cast<size_t>(num_layers), heads);
  for (size_t l = 0; l < layers.size(); ++l) layers[l].window = windowed[l] * window;
  const nlohmann::json* const bases = config.find({"layer_rope_theta"});
  if (bases == nullptr) return layers;
  const auto is_number = [](const nlohmann::json& base) { return base.is_number(); };
  if (!bases->is_array() || bases->size() != layers.size() ||
      !std::all_of(bases->begin(), bases->end(), is_number)) {
    return config.wrong({"layer_rope_theta"}, str("a number for each of ", num_layers, " layers"),
                        "it has others");
  }
  MORACLE_TRY(const auto settings, rotary_settings(config));
  for (size_t l = 0; l < layers.size(); ++l) {
    if ((*bases)[l] == 0) {
      rotate_nothing(layers[l].rotary);
      continue;
    }
    nlohmann::json own = settings ? settings->value() : nlohmann::json::object();
    own["rope_theta"] = (*bases)[l];
    MORACLE_TRY(
        RotaryAndScale read,
        read_rotary(config, Config::from(std::move(own), config.path()), heads.head_dim, {}));
    layers[l].rotary = std::move(read.rotary);
  }
  return layers;
}

enum class Kind : uint8_t { kPlain, kShared, kWindowed };
Result<Description> describe_with(const Checkpoint& checkpoint, Kind kind) {
  const Config& config = checkpoint.state().config;
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  MORACLE_TRY(spec.factors, read_granite_factors(config, spec.decoder));
  if (kind == Kind::kWindowed) {
    MORACLE_TRY(spec.layers, read_windowed(config, spec.decoder, checkpoint.num_layers()));
  } else {
    MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder));
  }
  spec.heads.scale = spec.factors.attention;
  for (GroupedQuerySpec& heads : spec.layers) heads.scale = spec.heads.scale;
  MORACLE_TRY(spec.biased, config.boolean_or(false, {"attention_bias"}));
  if (kind != Kind::kPlain) {
    MORACLE_TRY(spec.shared_intermediate,
                config.integer_or(0, {"shared_intermediate_size"}, 0, 1 << 24));
  }
  MORACLE_TRY(Description description,
              describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, layer);
              }));
  divide_granite_logits(description, spec.factors);
  return description;
}

Result<Description> describe_plain(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, Kind::kPlain);
}
Result<Description> describe_shared(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, Kind::kShared);
}
Result<Description> describe_windowed(const Checkpoint& checkpoint) {
  return describe_with(checkpoint, Kind::kWindowed);
}

constexpr ExpertConvention convention(std::string_view defaults,
                                      std::span<const GgufConvention> gguf = {},
                                      std::span<const ExpertNames> names = kGraniteExperts) {
  return {.defaults = defaults,
          .names = names,
          .intermediate_size = kGraniteSizeKeys,
          .score = Score::kTopkThenSoftmax,
          .gguf = gguf};
}

constexpr const char* kGgufShared = "granitemoe.expert_shared_feed_forward_length";
bool has_shared(const Config& metadata, const Tensors&) {
  return metadata.has({kGgufShared});
}
bool lacks_shared(const Config& metadata, const Tensors&) {
  return !metadata.has({kGgufShared});
}
Status finish_gguf(GgufModel& model) {
  set_attention_bias(model);
  return undo_rotary_order(model);
}
Status write_gguf(GgufDraft& draft) {
  split_granite_shared_mlp(draft);
  return {};
}
constexpr GgufConvention kGguf[] = {{.architecture = "granitemoe",
                                     .keys = kGraniteGgufKeys,
                                     .tensors = kGraniteGgufTensors,
                                     .applies = lacks_shared,
                                     .finish = finish_gguf,
                                     .write = write_gguf}};
constexpr GgufConvention kSharedGguf[] = {{.architecture = "granitemoe",
                                           .keys = kGraniteGgufKeys,
                                           .tensors = kGraniteGgufTensors,
                                           .applies = has_shared,
                                           .finish = finish_gguf,
                                           .write = write_gguf}};

// Differs from kGraniteGgufTensors: gate and up of the shared MLP are one matrix.
constexpr GgufTensor kWindowedGgufTensors[] = {
    {"blk.{L}.attn_sinks.weight", "model.layers.{L}.self_attn.sinks"},
    {"blk.{L}.ffn_gate_inp", "model.layers.{L}.block_sparse_moe.router"},
    {"blk.{L}.ffn_gate_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj"},
    {"blk.{L}.ffn_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_gate_up_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.gate_proj",
     "model.layers.{L}.block_sparse_moe.experts.{E}.up_proj"},
    {"blk.{L}.ffn_down_exps", "model.layers.{L}.block_sparse_moe.experts.{E}.down_proj"},
    {"blk.{L}.ffn_up_shexp", "model.layers.{L}.shared_mlp.gate_proj",
     "model.layers.{L}.shared_mlp.up_proj"},
    {"blk.{L}.ffn_down_shexp", "model.layers.{L}.shared_mlp.down_proj"},
};
constexpr GgufKey kWindowKey[] = {{"attention.sliding_window", "sliding_window"}};
constexpr auto kWindowedKeys = joined(kGraniteGgufKeys, kWindowKey);

// attention.rope_pattern: a boolean for each layer. Without it, all layers rotate.
Status finish_windowed_gguf(GgufModel& model) {
  constexpr int64_t kPeriod = 4;
  MORACLE_CHECK(set_layer_types(model, kPeriod, GgufUnwindowed::kFirst));
  MORACLE_CHECK(finish_gguf(model));
  const std::string key = gguf_key(model, "attention.rope_pattern");
  const nlohmann::json* const pattern = model.metadata.find({key.c_str()});
  if (pattern == nullptr) return {};
  const auto layers = model.config["num_hidden_layers"].get<size_t>();
  if (!pattern->is_array() || pattern->size() < layers)
    return model.metadata.wrong({key.c_str()}, str("a boolean for each of ", layers, " layers"),
                                "it has others");
  const nlohmann::json theta = model.config.value("rope_theta", nlohmann::json(10000.0));
  nlohmann::json bases = nlohmann::json::array();
  for (size_t layer = 0; layer < layers; ++layer)
    bases.push_back((*pattern)[layer] == true ? theta : nlohmann::json(0));
  model.config["layer_rope_theta"] = std::move(bases);
  return {};
}

// One base counts for all layers that rotate.
Status write_windowed_gguf(GgufDraft& draft) {
  split_granite_shared_mlp(draft);
  MORACLE_CHECK(put_window_pattern(draft));
  const nlohmann::json* const bases = draft.config.find({"layer_rope_theta"});
  if (bases == nullptr || !bases->is_array()) return {};
  nlohmann::json pattern = nlohmann::json::array();
  for (const nlohmann::json& base : *bases) {
    pattern.push_back(base != 0);
    if (base != 0) put_gguf(draft, "rope.freq_base", base.get<double>());
  }
  put_gguf(draft, "attention.rope_pattern", std::move(pattern));
  return {};
}
constexpr GgufConvention kWindowedGguf[] = {{.architecture = "granite_swa",
                                             .keys = kWindowedKeys,
                                             .tensors = kWindowedGgufTensors,
                                             .finish = finish_windowed_gguf,
                                             .write = write_windowed_gguf}};

}  // namespace
}  // namespace granite_moe

void split_granite_shared_mlp(GgufDraft& draft) {
  split_rows(draft, ".shared_mlp.input_linear.weight", ".shared_mlp.gate_proj.weight",
             ".shared_mlp.up_proj.weight");
  rename_ending(draft.tensors, ".shared_mlp.output_linear.weight", ".shared_mlp.down_proj.weight");
}

constinit const Family kGraniteMoeFamily = {
    .architecture = "GraniteMoeForCausalLM",
    .models = "Granite-MoE",
    .describe = granite_moe::describe_plain,
    .experts = granite_moe::convention(granite_moe::kDefaults, granite_moe::kGguf)};
constinit const Family kGraniteMoeSharedFamily = {
    .architecture = "GraniteMoeSharedForCausalLM",
    .models = "Granite-MoE with a shared expert",
    .describe = granite_moe::describe_shared,
    .experts = granite_moe::convention(granite_moe::kSharedDefaults, granite_moe::kSharedGguf)};
constinit const Family kGraniteMoeSwaFamily = {
    .architecture = "GraniteMoeSWAForCausalLM",
    .models = "Granite-MoE with windows",
    .describe = granite_moe::describe_windowed,
    .experts = granite_moe::convention(granite_moe::kWindowedDefaults, granite_moe::kWindowedGguf,
                                       granite_moe::kWindowedNames)};

}  // namespace moracle
