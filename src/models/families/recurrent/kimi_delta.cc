#include "models/families/recurrent/kimi_delta.h"

#include "base/text.h"
#include "base/try.h"

namespace moracle {

Result<std::vector<bool>> read_delta_layers(const Config& config, std::vector<bool> by_default) {
  MORACLE_TRY(const std::vector<std::string> types, config.texts({"layer_types"}));
  if (types.empty()) return by_default;
  std::vector<bool> is_delta;
  for (const std::string& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      return config.unsupported({"layer_types"}, "linear_attention and full_attention",
                                "it has " + type);
    }
    is_delta.push_back(type == "linear_attention");
  }
  if (is_delta.size() == by_default.size()) return is_delta;
  return config.wrong({"layer_types"}, str("one for each of ", by_default.size(), " layers"),
                      str("it has ", is_delta.size()));
}

namespace kimi_delta_family {
namespace {

// The weights of the three convolutions. transformers holds them in one tensor, and saves it as
// such where it does not write the published names.
Result<std::vector<float>> convolution(const Checkpoint& checkpoint, const std::string& prefix,
                                       const KimiDeltaSpec& spec) {
  const std::string stacked = prefix + "conv1d.weight";
  if (checkpoint.has_tensor(stacked))
    return checkpoint.floats(stacked, {3 * spec.channels(), 1, spec.kernel});
  std::vector<float> all;
  for (const char* const which : {"q", "k", "v"}) {
    MORACLE_TRY(
        const std::vector<float> weights,
        checkpoint.floats(str(prefix, which, "_conv1d.weight"), {spec.channels(), 1, spec.kernel}));
    all.insert(all.end(), weights.begin(), weights.end());
  }
  return all;
}

}  // namespace
}  // namespace kimi_delta_family

Result<KimiDeltaDescription> describe_kimi_delta(
    const Checkpoint& checkpoint, const std::string& prefix, const DecoderSpec& decoder,
    const KimiDeltaSpec& spec, const std::vector<int64_t>& log_shape, const char* o_name) {
  const int64_t hidden = decoder.hidden_size, channels = spec.channels();
  const auto linear = [&](const std::string& name, int64_t rows, int64_t columns) {
    return describe_linear(checkpoint, {prefix + name}, {rows}, columns);
  };
  MORACLE_TRY(auto taps, kimi_delta_family::convolution(checkpoint, prefix, spec));
  MORACLE_TRY(auto a_log, checkpoint.floats(prefix + "A_log", log_shape));
  MORACLE_TRY(auto dt_bias, checkpoint.vector(prefix + "dt_bias", channels));
  MORACLE_TRY(auto norm, checkpoint.vector(prefix + "o_norm.weight", spec.head_dim));
  MORACLE_TRY(DescribedMatrix qkv,
              describe_linear(checkpoint, {prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"},
                              {channels, channels, channels}, hidden));
  MORACLE_TRY(DescribedMatrix strength, linear("b_proj", spec.num_heads, hidden));
  const int64_t from = spec.rank > 0 ? spec.rank : hidden;
  std::optional<DescribedMatrix> decay_a, gate_a;
  if (spec.rank > 0) {
    MORACLE_TRY(decay_a, linear("f_a_proj", spec.rank, hidden));
    MORACLE_TRY(gate_a, linear("g_a_proj", spec.rank, hidden));
  }
  MORACLE_TRY(DescribedMatrix decay, linear(spec.rank > 0 ? "f_b_proj" : "f_proj", channels, from));
  MORACLE_TRY(DescribedMatrix gate, linear(spec.rank > 0 ? "g_b_proj" : "g_proj", channels, from));
  MORACLE_TRY(DescribedMatrix o, linear(o_name, hidden, channels));
  return KimiDeltaDescription{spec,
                              std::move(taps),
                              std::move(a_log),
                              std::move(dt_bias),
                              std::move(norm),
                              std::move(qkv),
                              std::move(strength),
                              std::move(decay_a),
                              std::move(decay),
                              std::move(gate_a),
                              std::move(gate),
                              std::move(o)};
}

}  // namespace moracle
