// Reads the sizes of a decoder from config.json (declared in decoder_family.h).
#include <algorithm>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/experts/convention.h"
#include "models/attention/rotary.h"
#include "models/families/decoder_family.h"

namespace moracle {

Result<DecoderSpec> read_decoder_spec(const Config& config, const char* epsilon_key,
                                      std::optional<Activation> fixed) {
  DecoderSpec spec;
  MORACLE_TRY(spec.hidden_size, config.integer({"hidden_size"}, 1, 1 << 20));
  MORACLE_TRY(spec.vocab_size, config.integer({"vocab_size"}, 1));
  MORACLE_TRY(spec.max_context, config.integer({"max_position_embeddings", "model_max_length"}, 1));
  MORACLE_TRY(const double epsilon, config.number({epsilon_key}));
  if (!(epsilon >= 0 && epsilon < 1))
    return config.wrong({epsilon_key}, "a number from 0 to 1", str("it is ", epsilon));
  spec.norm_epsilon = static_cast<float>(epsilon);
  if (fixed) {
    spec.activation = *fixed;
    return spec;
  }
  MORACLE_TRY(const std::string text, config.text_or("silu", {"hidden_act"}));
  const Result<Activation> activation = parse_activation(text);
  if (!activation || !is_gated(*activation) || *activation == Activation::kSwigluOai ||
      *activation == Activation::kSwigluStep) {
    return config.unsupported({"hidden_act"}, "an activation function with a gate",
                              "it is " + text);
  }
  spec.activation = *activation;
  return spec;
}

Result<Activation> read_ungated(const Config& config, const char* key) {
  MORACLE_TRY(const std::string text, config.text({key}));
  const Result<Activation> function = parse_activation(text);
  const std::optional<Activation> own = function ? without_gate(*function) : std::nullopt;
  if (own) return *own;
  return config.unsupported({key}, "silu, gelu, gelu_tanh or relu2", "it is " + text);
}

Result<GroupedQuerySpec> read_heads(const Config& config, const DecoderSpec& decoder) {
  GroupedQuerySpec spec;
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(spec.num_heads, config.integer({"num_attention_heads"}, 1, 1 << 16));
  MORACLE_TRY(spec.num_kv_heads,
              config.integer_or(spec.num_heads, {"num_key_value_heads", "num_attention_groups"}, 1,
                                spec.num_heads));
  if (spec.num_heads % spec.num_kv_heads != 0) {
    return config.wrong({"num_key_value_heads"}, str("a divisor of ", spec.num_heads, " heads"),
                        str("it is ", spec.num_kv_heads));
  }
  MORACLE_TRY(spec.head_dim,
              config.integer_or(decoder.hidden_size / spec.num_heads, {"head_dim"}, 2, 1 << 16));
  if (spec.head_dim % 2 != 0 || spec.head_dim == 0) {
    return config.wrong({"head_dim"}, "an even number", str("it is ", spec.head_dim));
  }
  return spec;
}

Result<GroupedQuerySpec> read_grouped_query(const Config& config, const DecoderSpec& decoder,
                                            bool only_full, const RotaryKinds& kinds) {
  MORACLE_TRY(GroupedQuerySpec spec, read_heads(config, decoder));
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, spec.head_dim, kinds));
  spec.rotary = std::move(read.rotary);
  if (!only_full) return spec;
  MORACLE_TRY(const bool sliding, config.boolean_or(false, {"use_sliding_window"}));
  if (sliding) return config.unsupported({"use_sliding_window"}, "false", "it is true");
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  for (const std::string& type : types) {
    if (type != "full_attention")
      return config.unsupported({"layer_types"}, "full_attention", "it has " + type);
  }
  return spec;
}

Result<Rotary> read_rotary_of_kind(const Config& config, const char* kind, int64_t dim,
                                   const RotaryKinds& kinds) {
  MORACLE_TRY(const auto all, rotary_settings(config));
  if (!all) return config.wrong({"rope_parameters"}, "an object", "it is missing");
  MORACLE_TRY(const auto rope, all->object({kind}));
  if (!rope) return all->wrong({kind}, "an object", "it is missing");
  MORACLE_TRY(RotaryAndScale read, read_rotary(config, rope, dim, kinds));
  return std::move(read.rotary);
}

Result<int64_t> read_sliding_window(const Config& config) {
  MORACLE_TRY(const bool sliding, config.boolean_or(false, {"use_sliding_window"}));
  if (!sliding) return 0;
  return config.integer({"sliding_window"}, 1);
}

Result<std::vector<int64_t>> read_windows(const Config& config, int64_t window, int64_t num_layers,
                                          const std::function<bool(int64_t layer)>& is_windowed) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  std::vector<int64_t> windows;
  for (int64_t layer = 0; types.empty() && layer < num_layers; ++layer)
    windows.push_back(is_windowed(layer) ? window : 0);
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return config.unsupported({"layer_types"}, "sliding_attention and full_attention",
                                "it has " + type);
    }
    windows.push_back(type == "sliding_attention" ? window : 0);
  }
  if (static_cast<int64_t>(windows.size()) == num_layers) return windows;
  return config.wrong({"layer_types"}, str("one for each of ", num_layers, " layers"),
                      str("it has ", windows.size()));
}

Result<std::vector<GroupedQuerySpec>> read_windowed_layers(
    const Config& config, const DecoderSpec& decoder, int64_t num_layers,
    const std::function<bool(int64_t layer)>& is_windowed, const RotaryKinds& kinds) {
  MORACLE_TRY(const GroupedQuerySpec heads, read_heads(config, decoder));
  MORACLE_TRY(const std::vector<int64_t> windowed,
              read_windows(config, 1, num_layers, is_windowed));
  GroupedQuerySpec of_kind[] = {heads, heads};
  for (const bool window : {false, true}) {
    if (std::find(windowed.begin(), windowed.end(), window ? 1 : 0) == windowed.end()) continue;
    if (window) {
      MORACLE_TRY(of_kind[1].window, config.integer({"sliding_window"}, 1));
    }
    MORACLE_TRY(of_kind[window].rotary,
                read_rotary_of_kind(config, window ? "sliding_attention" : "full_attention",
                                    heads.head_dim, kinds));
  }
  std::vector<GroupedQuerySpec> layers;
  for (const int64_t window : windowed) layers.push_back(of_kind[window]);
  return layers;
}

Status require_flag(const Config& config, const char* key, bool value) {
  MORACLE_TRY(const bool stored, config.boolean_or(value, {key}));
  if (stored == value) return {};
  return config.unsupported({key}, value ? "true" : "false", value ? "it is false" : "it is true");
}

Result<bool> is_dense_layer(const Config& config, int64_t layer) {
  MORACLE_TRY(const std::vector<int64_t> dense, config.integers({"mlp_only_layers"}));
  MORACLE_TRY(const int64_t step, config.integer_or(1, {"decoder_sparse_step"}, 1));
  return std::find(dense.begin(), dense.end(), layer) != dense.end() || (layer + 1) % step != 0;
}

}  // namespace moracle
