#include "models/families/recurrent/mamba_layers.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "base/try.h"
#include "checkpoint/state.h"

namespace moracle {

Result<Mamba2Spec> read_mamba2(const Config& config, const DecoderSpec& decoder, int64_t head_dim,
                               const Mamba2Keys& keys) {
  Mamba2Spec spec;
  spec.head_dim = head_dim;
  spec.norm_epsilon = decoder.norm_epsilon;
  MORACLE_TRY(spec.num_heads, config.integer({keys.num_heads}, 1, 1 << 14));
  MORACLE_TRY(spec.num_groups, config.integer({keys.num_groups}, 1, 1 << 14));
  MORACLE_TRY(spec.state_dim, config.integer({keys.state_dim}, 1, 1 << 14));
  MORACLE_TRY(spec.kernel, config.integer({keys.kernel}, 2, 16));
  spec.norm_size = spec.inner() / std::max<int64_t>(spec.num_groups, 1);
  if (spec.num_heads % spec.num_groups == 0) return spec;
  return config.wrong({keys.num_groups}, str("a divisor of ", spec.num_heads, " heads"),
                      str("it is ", spec.num_groups));
}

Status read_step_limits(const Config& config, Mamba2Spec& spec) {
  const nlohmann::json* const limits = config.find({"time_step_limit"});
  if (limits == nullptr) return {};
  const auto is_number = [](const nlohmann::json& limit) { return limit.is_number(); };
  const bool two = limits->is_array() && limits->size() == 2 &&
                   std::all_of(limits->begin(), limits->end(), is_number);
  // A double beyond f32 is infinite there.
  constexpr double kMost = std::numeric_limits<float>::max();
  const auto limit = [&](size_t i) {
    const double value = (*limits)[i].get<double>();
    return value > kMost ? std::numeric_limits<float>::infinity() : static_cast<float>(value);
  };
  if (!two || !(limit(0) >= 0 && limit(0) <= limit(1)))
    return config.wrong({"time_step_limit"}, "two numbers from 0, the smaller one first",
                        "it has others");
  spec.least_step = limit(0);
  spec.most_step = limit(1);
  return {};
}

Result<AttentionDescription> describe_mamba2(const Checkpoint& checkpoint,
                                             const std::string& prefix, const DecoderSpec& decoder,
                                             const Mamba2Spec& spec, Mamba2Biases biases) {
  const auto linear = biases.linear ? describe_biased_linear : describe_linear;
  const int64_t hidden = decoder.hidden_size;
  MORACLE_TRY(DescribedMatrix in,
              linear(checkpoint, {prefix + "in_proj"}, {spec.projected()}, hidden));
  MORACLE_TRY(DescribedMatrix o, linear(checkpoint, {prefix + "out_proj"}, {hidden}, spec.inner()));
  MORACLE_TRY(auto convolution,
              checkpoint.floats(prefix + "conv1d.weight", {spec.mixed(), 1, spec.kernel}));
  std::vector<float> bias;
  if (biases.convolution) {
    MORACLE_TRY(bias, checkpoint.vector(prefix + "conv1d.bias", spec.mixed()));
  }
  MORACLE_TRY(auto a_log, checkpoint.vector(prefix + "A_log", spec.num_heads));
  MORACLE_TRY(auto dt_bias, checkpoint.vector(prefix + "dt_bias", spec.num_heads));
  MORACLE_TRY(auto d, checkpoint.vector(prefix + "D", spec.num_heads));
  MORACLE_TRY(auto norm, checkpoint.vector(prefix + "norm.weight", spec.inner()));
  return AttentionDescription(Mamba2Description{spec, std::move(convolution), std::move(bias),
                                                std::move(a_log), std::move(dt_bias), std::move(d),
                                                std::move(norm), std::move(in), std::move(o)});
}

}  // namespace moracle
