#include "models/attention/rotary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "base/text.h"
#include "base/try.h"

namespace moracle {
namespace {

const Config::Keys kContextKeys = {"max_position_embeddings", "model_max_length"};

struct Yarn {
  double factor = 1;
  double original_context = 0;
  double beta_fast = 32, beta_slow = 1;  // rotations within the original context
  bool truncate = true;
};

double magnitude(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// Index of the pair that makes `rotations` full rotations within the original context.
double pair_of(double rotations, const Yarn& yarn, int64_t dim, double theta) {
  return static_cast<double>(dim) *
         std::log(yarn.original_context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

// Fast pairs keep their frequency, slow pairs are stretched, and a ramp connects them.
std::vector<float> blend(const Yarn& yarn, int64_t dim, double theta) {
  double low = pair_of(yarn.beta_fast, yarn, dim, theta);
  double high = pair_of(yarn.beta_slow, yarn, dim, theta);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> frequencies(dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double at = static_cast<double>(i);
    const double kept = 1 - std::clamp((at - low) / (high - low), 0.0, 1.0);
    const double frequency = std::pow(theta, -2 * at / static_cast<double>(dim));
    frequencies[i] = static_cast<float>(frequency / yarn.factor * (1 - kept) + frequency * kept);
  }
  return frequencies;
}

// Long waves are stretched, short waves stay, and a ramp connects them (Llama 3.1).
struct Llama3 {
  double factor = 1, low = 1, high = 4, original_context = 0;
  float stretched(double frequency) const {
    const double wavelength = 2 * std::numbers::pi / frequency;
    const double rotations = original_context / wavelength;
    const double kept = high > low ? std::clamp((rotations - low) / (high - low), 0.0, 1.0)
                                   : static_cast<double>(rotations > high);
    return static_cast<float>((1 - kept) * frequency / factor + kept * frequency);
  }
};

Result<double> positive(const Config& config, Config::Keys keys, double fallback) {
  MORACLE_TRY(const double value, config.number_or(fallback, keys));
  if (value > 0 && value <= 1e9) return value;
  return config.wrong(keys, "a number above 0",
                      config.has(keys) ? str("it is ", value) : "it is missing");
}

// Older files have it beside the rotary settings, which then counts. Without any it is the whole
// context.
Result<double> original_context(const Config& config, const Config& rope) {
  const Config::Keys original = {"original_max_position_embeddings"};
  MORACLE_TRY(const double context, positive(config, kContextKeys, 0));
  MORACLE_TRY(const double among, positive(rope, original, context));
  return positive(config, original, among);
}

// The factor on scores of DeepSeek's attention, with any kind of stretched RoPE.
Result<double> read_score_scale(const Config& rope, double factor) {
  MORACLE_TRY(const double weight, rope.number_or(0, {"mscale_all_dim"}));
  if (weight >= 0 && weight <= 1e6) return std::pow(magnitude(factor, weight), 2);
  return rope.wrong({"mscale_all_dim"}, "a number from 0 to 1000000", str("it is ", weight));
}

Result<RotaryAndScale> read_yarn(const Config& config, const Config& rope, int64_t dim,
                                 double theta) {
  Yarn yarn;
  MORACLE_TRY(yarn.original_context, original_context(config, rope));
  // A null factor follows from the contexts.
  const bool follows = rope.value().contains("factor") && !rope.has({"factor"});
  MORACLE_TRY(const double context, positive(config, kContextKeys, 0));
  MORACLE_TRY(yarn.factor,
              positive(rope, {"factor"}, follows ? context / yarn.original_context : 0));
  MORACLE_TRY(yarn.beta_fast, positive(rope, {"beta_fast"}, yarn.beta_fast));
  MORACLE_TRY(yarn.beta_slow, positive(rope, {"beta_slow"}, yarn.beta_slow));
  MORACLE_TRY(yarn.truncate, rope.boolean_or(true, {"truncate"}));
  MORACLE_TRY(const double mscale, rope.number_or(0, {"mscale"}));
  if (!(mscale >= 0 && mscale <= 1e6))
    return rope.wrong({"mscale"}, "a number from 0 to 1000000", str("it is ", mscale));
  RotaryAndScale read;
  MORACLE_TRY(read.score_scale, read_score_scale(rope, yarn.factor));
  MORACLE_TRY(const double mscale_all_dim, rope.number_or(0, {"mscale_all_dim"}));
  const bool both = mscale != 0 && mscale_all_dim != 0;
  MORACLE_TRY(const double factor, positive(rope, {"attention_factor"},
                                            both ? magnitude(yarn.factor, mscale) /
                                                       magnitude(yarn.factor, mscale_all_dim)
                                                 : magnitude(yarn.factor, 1)));
  read.rotary = {blend(yarn, dim, theta), static_cast<float>(factor)};
  return read;
}

Result<Llama3> read_llama3(const Config& config, const Config& rope) {
  Llama3 llama3;
  MORACLE_TRY(llama3.factor, positive(rope, {"factor"}, 0));
  MORACLE_TRY(llama3.low, positive(rope, {"low_freq_factor"}, 0));
  MORACLE_TRY(llama3.high, positive(rope, {"high_freq_factor"}, 0));
  MORACLE_TRY(llama3.original_context, original_context(config, rope));
  if (llama3.high >= llama3.low) return llama3;
  return rope.wrong({"high_freq_factor"}, str("at least low_freq_factor, ", llama3.low),
                    str("it is ", llama3.high));
}

// LongRoPE (Ding et al., 2024): a divisor for each frequency. Sequences beyond the original context
// use other divisors for all of their keys.
Result<RotaryAndScale> read_longrope(const Config& config, const Config& rope, int64_t dim,
                                     double theta) {
  RotaryAndScale read;
  const auto read_frequencies = [&](const char* key, std::vector<float>& frequencies) -> Status {
    const nlohmann::json* const factors = rope.find({key});
    const bool numbers =
        factors != nullptr && factors->is_array() &&
        factors->size() == static_cast<size_t>(dim / 2) &&
        std::all_of(factors->begin(), factors->end(), [](const nlohmann::json& factor) {
          return factor.is_number() && factor.get<double>() > 0 && factor.get<double>() <= 1e9;
        });
    if (!numbers) return rope.wrong({key}, str(dim / 2, " numbers above 0"), "it has others");
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(dim);
      const double divisor = (*factors)[static_cast<size_t>(i)].get<double>();
      frequencies.push_back(static_cast<float>(1 / (divisor * std::pow(theta, exponent))));
    }
    return {};
  };
  MORACLE_CHECK(read_frequencies("short_factor", read.rotary.frequencies));
  MORACLE_CHECK(read_frequencies("long_factor", read.rotary.long_frequencies));
  MORACLE_TRY(const double short_factor, positive(rope, {"short_mscale"}, 0));
  MORACLE_TRY(const double long_factor, positive(rope, {"long_mscale"}, 0));
  read.short_factor = static_cast<float>(short_factor);
  read.long_factor = static_cast<float>(long_factor);
  MORACLE_TRY(const double context, original_context(config, rope));
  read.short_context = static_cast<int64_t>(context);
  return read;
}

// The first pairs have the frequencies of a whole head, the others none.
Result<RotaryAndScale> read_proportional(const Config& rope, int64_t dim, double theta,
                                         double fraction) {
  MORACLE_TRY(const double factor, positive(rope, {"factor"}, 1));
  const auto turned = static_cast<int64_t>(std::floor(fraction * static_cast<double>(dim) / 2));
  RotaryAndScale read;
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(dim);
    const double frequency = i < turned ? 1 / (factor * std::pow(theta, exponent)) : 0;
    read.rotary.frequencies.push_back(static_cast<float>(frequency));
  }
  return read;
}

// The object that has the key: the settings, or what is beside them.
const Config& holder(const Config& config, const std::optional<Config>& rope, const char* key) {
  return rope && rope->has({key}) ? *rope : config;
}

Result<double> read_theta(const Config& config, const std::optional<Config>& rope) {
  const Config& from = holder(config, rope, "rope_theta");
  MORACLE_TRY(const double theta, from.number({"rope_theta"}));
  if (theta > 1 && theta <= 1e30) return theta;
  return from.wrong({"rope_theta"}, "a number above 1", str("it is ", theta));
}

// Divisors of the frequencies, which GGUF files have in place of the settings that give them.
Result<std::vector<double>> read_divisors(const std::optional<Config>& rope, int64_t count) {
  std::vector<double> divisors(static_cast<size_t>(count), 1.0);
  const nlohmann::json* const all = rope ? rope->find({"frequency_divisors"}) : nullptr;
  if (all == nullptr) return divisors;
  const bool fits = all->is_array() && static_cast<int64_t>(all->size()) == count &&
                    std::all_of(all->begin(), all->end(), std::mem_fn(&nlohmann::json::is_number));
  for (size_t i = 0; fits && i < divisors.size(); ++i) divisors[i] = (*all)[i].get<double>();
  const bool positive =
      std::all_of(divisors.begin(), divisors.end(), [](double divisor) { return divisor > 0; });
  if (fits && positive) return divisors;
  return rope->wrong({"frequency_divisors"}, str(count, " numbers above 0"), "it has others");
}

}  // namespace

Result<std::optional<Config>> rotary_settings(const Config& config) {
  MORACLE_TRY(auto older, config.object({"rope_scaling"}));
  if (older && !older->value().empty()) return older;
  return config.object({"rope_parameters"});
}

Result<RotaryAndScale> read_rotary(const Config& config, int64_t dim, const RotaryKinds& kinds) {
  MORACLE_TRY(const auto rope, rotary_settings(config));
  if (rope) {
    for (const auto& [key, value] : rope->value().items()) {
      if (value.is_object())
        return rope->unsupported({key.c_str()}, "one setting for all layers", "it is an object");
    }
  }
  return read_rotary(config, rope, dim, kinds);
}

Result<RotaryAndScale> read_rotary(const Config& config, const std::optional<Config>& rope,
                                   int64_t dim, const RotaryKinds& kinds) {
  MORACLE_TRY(double theta, read_theta(config, rope));
  const Config::Keys fraction_key = {"partial_rotary_factor"};
  const Config& from = holder(config, rope, fraction_key[0]);
  MORACLE_TRY(const double fraction, from.number_or(kinds.fraction, fraction_key));
  if (!(fraction > 0 && fraction <= 1))
    return from.wrong(fraction_key, "a number above 0, at most 1", str("it is ", fraction));
  std::string type = "default";
  if (rope) {
    MORACLE_TRY(type, rope->text_or(type, {"rope_type", "type"}));
  }
  if (type == "deepseek_yarn") type = "yarn";  // its name in Sarvam-105B's files
  if (type == "proportional") return read_proportional(*rope, dim, theta, fraction);
  if (fraction != 1 && !kinds.partial)
    return from.unsupported(fraction_key, "1", str("it is ", fraction));
  const double columns = std::trunc(static_cast<double>(dim) * fraction);
  if (columns < 2 || std::fmod(columns, 2) != 0) {
    return from.wrong(fraction_key, str("the share of an even number of ", dim, " columns"),
                      str("it is ", fraction));
  }
  dim = static_cast<int64_t>(columns);
  if (type == "longrope" && kinds.longrope) return read_longrope(config, *rope, dim, theta);
  if (type == "yarn") return read_yarn(config, *rope, dim, theta);
  Llama3 llama3;
  double factor = 1;
  RotaryAndScale read;
  if (type == "llama3") {
    MORACLE_TRY(llama3, read_llama3(config, *rope));
    MORACLE_TRY(read.score_scale, read_score_scale(*rope, llama3.factor));
  } else if (type == "linear") {
    MORACLE_TRY(factor, positive(*rope, {"factor"}, 0));
    MORACLE_TRY(read.score_scale, read_score_scale(*rope, factor));
  } else if (type == "dynamic" && kinds.ntk_alpha && rope->has({"alpha"})) {
    MORACLE_TRY(const double alpha, positive(*rope, {"alpha"}, 0));
    if (dim < 4) return config.wrong({"head_dim"}, "at least 4", str("it is ", dim));
    theta *= std::pow(alpha, static_cast<double>(dim) / static_cast<double>(dim - 2));
  } else if (type == "dynamic") {
    // Stretches contexts beyond max_position_embeddings, which no cache reaches.
    MORACLE_TRY(const double context_factor, positive(*rope, {"factor"}, 0));
    MORACLE_TRY(read.score_scale, read_score_scale(*rope, context_factor));
  } else if (type != "default") {
    return rope->unsupported(
        {"rope_type"}, "default, dynamic, linear, llama3, proportional or yarn", "it is " + type);
  }
  MORACLE_TRY(const std::vector<double> divisors, read_divisors(rope, dim / 2));
  for (int64_t i = 0; i < dim / 2; ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(dim);
    const double frequency = 1.0 / std::pow(theta, exponent) / divisors[static_cast<size_t>(i)];
    read.rotary.frequencies.push_back(type == "llama3" ? llama3.stretched(frequency)
                                                       : static_cast<float>(frequency / factor));
  }
  return read;
}

void rotate_nothing(Rotary& rotary) {
  std::fill(rotary.frequencies.begin(), rotary.frequencies.end(), 0.0f);
  rotary.factor = 1;
}

}  // namespace moracle
