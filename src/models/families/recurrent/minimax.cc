// MiniMax-Text-01 and M1: lightning attention, and GQA in some layers. The residual stream goes on
// from the output of each norm, and factors weigh it and the branch that is added to it.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"
#include "models/families/decoder_family.h"
#include "models/families/family.h"
#include "models/gguf/gguf_recurrent.h"

namespace moracle {
namespace minimax {
namespace {

// The defaults of transformers' MiniMaxConfig.
constexpr std::string_view kDefaults = R"({
  "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
  "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "num_experts_per_tok": 2, "num_local_experts": 8, "rope_theta": 1000000.0,
  "full_attn_alpha_factor": 1, "full_attn_beta_factor": 1, "linear_attn_alpha_factor": 1,
  "linear_attn_beta_factor": 1, "mlp_alpha_factor": 1, "mlp_beta_factor": 1
})";

struct Spec {
  DecoderSpec decoder;
  GroupedQuerySpec heads;
  LightningSpec lightning;
  std::vector<bool> is_lightning;  // by layer
  OutputStepsDescription of_attention, of_lightning, of_experts;
};

// residual · alpha + branch · beta. Published files have other names for the keys.
Result<OutputStepsDescription> read_factors(const Config& config, const std::string& branch,
                                            const std::string& published) {
  const auto read = [&](const char* which) -> Result<double> {
    const std::string key = str(branch, "_", which, "_factor"),
                      other = str("layernorm_", published, "_", which);
    const Config::Keys keys = {key.c_str(), other.c_str()};
    MORACLE_TRY(const double factor, config.number(keys));
    if (factor > 0 && factor <= 1e6) return factor;
    return config.wrong(keys, "a number above 0", str("it is ", factor));
  };
  MORACLE_TRY(const double alpha, read("alpha"));
  MORACLE_TRY(const double beta, read("beta"));
  return OutputStepsDescription{{}, static_cast<float>(beta / alpha), static_cast<float>(alpha)};
}

// Published files list numbers of kinds: 0 for lightning attention.
Result<std::vector<bool>> read_layer_types(const Config& config, int64_t num_layers) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  MORACLE_TRY(const std::vector<int64_t> numbers, config.integers({"attn_type_list"}));
  std::vector<bool> is_lightning;
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      return config.unsupported({"layer_types"}, "linear_attention and full_attention",
                                "it has " + type);
    }
    is_lightning.push_back(type == "linear_attention");
  }
  for (size_t layer = 0; types.empty() && layer < numbers.size(); ++layer) {
    if (numbers[layer] != 0 && numbers[layer] != 1) {
      return config.unsupported({"attn_type_list"}, "0 and 1", str("it has ", numbers[layer]));
    }
    is_lightning.push_back(numbers[layer] == 0);
  }
  for (int64_t layer = 0; types.empty() && numbers.empty() && layer < num_layers; ++layer)
    is_lightning.push_back(layer % 2 == 1);
  if (static_cast<int64_t>(is_lightning.size()) == num_layers) return is_lightning;
  return config.wrong({"layer_types", "attn_type_list"},
                      str("one for each of ", num_layers, " layers"),
                      str("it has ", is_lightning.size()));
}

Result<Spec> read(const Config& config, int64_t num_layers) {
  Spec spec;
  MORACLE_TRY(spec.decoder, read_decoder_spec(config));
  spec.decoder.post_norm_residual = true;
  MORACLE_CHECK(require_flag(config, "postnorm", true));
  if (spec.decoder.activation != Activation::kSilu) {
    return config.unsupported({"hidden_act"}, "silu, for lightning attention", "it is another one");
  }
  MORACLE_TRY(spec.heads, read_grouped_query(config, spec.decoder, false));
  MORACLE_TRY(const int64_t window, config.integer_or(0, {"sliding_window"}, 1));
  spec.heads.window = window;
  // The publisher's code rotates the first rotary_dim columns of a head. transformers ignores the
  // key and rotates all, so that the published weights do not work there.
  const int64_t head_dim = spec.heads.head_dim;
  MORACLE_TRY(const int64_t rotated, config.integer_or(head_dim, {"rotary_dim"}, 2, head_dim));
  if (rotated != head_dim) {
    const double fraction = static_cast<double>(rotated) / static_cast<double>(head_dim);
    MORACLE_TRY(RotaryAndScale read,
                read_rotary(config, head_dim, {.partial = true, .fraction = fraction}));
    spec.heads.rotary = std::move(read.rotary);
  }
  MORACLE_TRY(const int64_t shared, config.integer_or(0, {"shared_intermediate_size"}));
  if (shared != 0)
    return config.unsupported({"shared_intermediate_size"}, "0", str("it is ", shared));
  spec.lightning = {spec.heads.num_heads, spec.heads.head_dim};
  MORACLE_TRY(spec.is_lightning, read_layer_types(config, num_layers));
  MORACLE_TRY(spec.of_attention, read_factors(config, "full_attn", "full_attention"));
  MORACLE_TRY(spec.of_lightning, read_factors(config, "linear_attn", "linear_attention"));
  MORACLE_TRY(spec.of_experts, read_factors(config, "mlp", "mlp"));
  return spec;
}

// exp(-slope): the slopes of ALiBi (Press et al., 2021), smaller in later layers.
std::vector<double> slopes(int64_t num_heads, int64_t layer, int64_t num_layers) {
  const double depth =
      1 - static_cast<double>(layer) / (static_cast<double>(num_layers - 1) + 1e-5) + 1e-5;
  std::vector<double> all;
  for (int64_t head = 1; head <= num_heads; ++head) {
    const double exponent = -8.0 * static_cast<double>(head) / static_cast<double>(num_heads);
    all.push_back(std::exp2(exponent) * depth);
  }
  return all;
}

// transformers stores tables of the decays, which its class could compute. They may be rounded.
Status check_tables(const Checkpoint& checkpoint, const std::string& prefix,
                    const std::vector<double>& want) {
  const std::string name = prefix + "slope_rate";
  if (!checkpoint.has_tensor(name)) return {};
  const auto heads = static_cast<int64_t>(want.size());
  MORACLE_TRY(const std::vector<float> stored, checkpoint.floats(name, {heads, 1, 1}));
  for (size_t head = 0; head < want.size(); ++head) {
    if (std::abs(stored[head] - want[head]) <= want[head] / 128) continue;
    return checkpoint.state().tensors.wrong(name, str("the slope of ALiBi, ", want[head]),
                                            str("it is ", stored[head], " for head ", head));
  }
  return {};
}

Result<AttentionDescription> describe_lightning(const Checkpoint& checkpoint,
                                                const std::string& prefix, const Spec& spec,
                                                int64_t layer) {
  const LightningSpec& sizes = spec.lightning;
  const int64_t hidden = spec.decoder.hidden_size, channels = sizes.channels();
  const std::vector<double> rates = slopes(sizes.num_heads, layer, checkpoint.num_layers());
  MORACLE_CHECK(check_tables(checkpoint, prefix, rates));
  std::vector<float> decays;
  for (const double rate : rates) decays.push_back(static_cast<float>(std::exp(-rate)));
  MORACLE_TRY(std::vector<float> norm, checkpoint.vector(prefix + "norm.weight", channels));
  MORACLE_TRY(DescribedMatrix qkv,
              describe_linear(checkpoint, {prefix + "qkv_proj"}, {3 * channels}, hidden));
  MORACLE_TRY(DescribedMatrix gate,
              describe_linear(checkpoint, {prefix + "output_gate"}, {channels}, hidden));
  MORACLE_TRY(DescribedMatrix o,
              describe_linear(checkpoint, {prefix + "out_proj"}, {hidden}, channels));
  return AttentionDescription(LightningDescription{sizes, std::move(decays), std::move(norm),
                                                   std::move(qkv), std::move(gate), std::move(o)});
}

Result<AttentionDescription> describe_attention(const Checkpoint& checkpoint, const Spec& spec,
                                                int64_t layer) {
  const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.";
  if (spec.is_lightning[static_cast<size_t>(layer)])
    return describe_lightning(checkpoint, prefix, spec, layer);
  MORACLE_TRY(GroupedQueryDescription attention,
              describe_grouped_query(checkpoint, prefix, spec.decoder, spec.heads));
  return AttentionDescription(std::move(attention));
}

Result<LayerDescription> describe_layer(const Checkpoint& checkpoint, const Spec& spec,
                                        int64_t layer) {
  MORACLE_TRY(AttentionDescription attention, describe_attention(checkpoint, spec, layer));
  MORACLE_TRY(DescribedWeights experts, checkpoint.moe_layer(layer));
  MORACLE_TRY(RouterDescription router,
              describe_router(checkpoint, layer_prefix(checkpoint, layer) + "block_sparse_moe.gate",
                              experts.spec));
  MORACLE_TRY(LayerDescription described,
              describe_decoder_layer(checkpoint, spec.decoder, layer, std::move(attention),
                                     std::move(experts), std::move(router)));
  const bool is_lightning = spec.is_lightning[static_cast<size_t>(layer)];
  described.attention_output = is_lightning ? spec.of_lightning : spec.of_attention;
  described.mlp_output = spec.of_experts;
  return described;
}

Result<Description> describe(const Checkpoint& checkpoint) {
  MORACLE_TRY(const Spec spec, read(checkpoint.state().config, checkpoint.num_layers()));
  MORACLE_TRY(Description description,
              describe_decoder(checkpoint, spec.decoder, [&](int64_t layer) {
                return describe_layer(checkpoint, spec, layer);
              }));
  std::vector<std::string> tables;
  for (int64_t layer = 0; layer < checkpoint.num_layers(); ++layer) {
    const std::string prefix = layer_prefix(checkpoint, layer) + "self_attn.";
    if (!spec.is_lightning[static_cast<size_t>(layer)]) continue;
    for (const char* const name : {"query_decay", "key_decay", "diagonal_decay"})
      tables.push_back(prefix + name);
  }
  MORACLE_CHECK(ignore_tensors(checkpoint, "tables of decays, which config.json determines", tables,
                               description));
  return description;
}

constexpr GgufKey kGgufKeys[] = {
    {"feed_forward_length", "intermediate_size"},
    {"residual_scale", "layernorm_mlp_alpha"},
    {"rope.dimension_count", "rotary_dim", false},
};
constexpr GgufTensor kOwnGgufTensors[] = {
    {"blk.{L}.attn_output", "model.layers.{L}.self_attn.o_proj"},
    {"blk.{L}.attn_output", "model.layers.{L}.self_attn.out_proj"},  // of lightning attention
    {"blk.{L}.attn_qkv", "model.layers.{L}.self_attn.qkv_proj"},
    {"blk.{L}.attn_gate", "model.layers.{L}.self_attn.output_gate"},
    {"blk.{L}.attn_norm_2", "model.layers.{L}.self_attn.norm"},
};
constexpr auto kGgufTensors = joined(kBlockSparseGgufTensors, kOwnGgufTensors);

// llama.cpp has one alpha; every beta is 1. Without a key each eighth layer is softmax attention.
Status finish_gguf(GgufModel& model) {
  constexpr int64_t kPeriod = 8;
  nlohmann::json& config = model.config;
  MORACLE_CHECK(set_recurrent_layers(model, kPeriod));
  const nlohmann::json alpha = config["layernorm_mlp_alpha"];
  for (const char* const branch : {"full_attention", "linear_attention", "mlp"}) {
    config[str("layernorm_", branch, "_alpha")] = alpha;
    config[str("layernorm_", branch, "_beta")] = 1;
  }
  const nlohmann::json& types = config["layer_types"];
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] != "linear_attention") continue;
    rename_ending(model.tensors, str("layers.", layer, ".self_attn.o_proj.weight"),
                  str("layers.", layer, ".self_attn.out_proj.weight"));
  }
  return {};
}

Status write_gguf(GgufDraft& draft) {
  MORACLE_TRY(const Spec spec, read(draft.config, draft.num_layers));
  put_gguf(draft, "residual_scale", spec.of_experts.sum_scale);
  put_recurrent_layers(draft, spec.is_lightning);
  std::erase_if(draft.tensors,
                [](const auto& tensor) { return tensor.first.ends_with(".slope_rate"); });
  return {};
}
// Files have the published names.
bool has_other_names(const Config&, const Tensors&) {
  return false;
}
constexpr GgufConvention convention(bool published) {
  return {.architecture = "minimax-01",
          .keys = kGgufKeys,
          .tensors = kGgufTensors,
          .applies = published ? nullptr : has_other_names,
          .finish = finish_gguf,
          .write = write_gguf};
}
constexpr GgufConvention kGguf[] = {convention(false)}, kPublishedGguf[] = {convention(true)};

}  // namespace
}  // namespace minimax

// The weights of the chosen experts always sum to one: norm_topk_prob is ignored.
namespace minimax {
constexpr std::string_view kNotes =
    "`rotary_dim` counts, as in the publisher's code; stored tables of decays are not used";
constexpr ExpertConvention experts(std::span<const GgufConvention> gguf) {
  return {.defaults = kDefaults,
          .intermediate_size = kOnlySizeKeys,
          .score = Score::kSoftmax,
          .renormalize = true,
          .renormalize_keys = {},
          .gguf = gguf};
}
}  // namespace minimax
constinit const Family kMinimaxFamily = {.architecture = "MiniMaxForCausalLM",
                                         .models = "MiniMax-Text-01 as transformers saves it",
                                         .notes = minimax::kNotes,
                                         .describe = minimax::describe,
                                         .experts = minimax::experts(minimax::kGguf)};
constinit const Family kMinimaxText01Family = {
    .architecture = "MiniMaxText01ForCausalLM",
    .also = "MiniMaxM1ForCausalLM",
    .models = "MiniMax-Text-01, M1",
    .notes = minimax::kNotes,
    .describe = minimax::describe,
    .experts = minimax::experts(minimax::kPublishedGguf)};

}  // namespace moracle
