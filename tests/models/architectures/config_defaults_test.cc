// What missing keys of config.json mean, against transformers' configuration classes, and where the
// rotary settings may be, against its models (tests/golden/config, tests/golden/README.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "models/families/family.h"
#include "models/golden_model.h"
#include "support/must.h"
#include "support/sample.h"

namespace moracle::config_defaults_test {
namespace {

using nlohmann::json;
using testing::must;
using testing::SyntheticCheckpoint;

json golden(const std::string& name) {
  return json::parse(std::ifstream(testing::golden_dir() + "/config/" + name));
}

bool same(const DescribedWeights& a, const DescribedWeights& b) {
  return a.spec.name == b.spec.name && a.spec.same_but_name(b.spec);
}
bool same(const AttentionDescription& a, const AttentionDescription& b) {
  if (a.index() != b.index()) return false;
  const auto same_kind = [&](const auto& one) {
    const auto& other = std::get<std::decay_t<decltype(one)>>(b);
    bool norms = true;
    if constexpr (requires { one.q_norm; }) norms = one.q_norm == other.q_norm;
    if constexpr (requires { one.o; }) norms = norms && one.o.tensors() == other.o.tensors();
    return norms && one.spec == other.spec;
  };
  return std::visit(same_kind, a);
}
bool same(const LayerDescription& a, const LayerDescription& b) {
  return same(a.attention, b.attention) && a.mlp.has_value() == b.mlp.has_value() &&
         (!a.mlp || same(*a.mlp, *b.mlp)) && a.router.has_value() == b.router.has_value() &&
         (!a.router || a.router->correction_bias == b.router->correction_bias) &&
         a.shared.has_value() == b.shared.has_value() &&
         (!a.shared || same(a.shared->mlp, b.shared->mlp)) && a.input_norm == b.input_norm &&
         a.attention_output.scale == b.attention_output.scale &&
         a.mlp_output.scale == b.mlp_output.scale &&
         a.mlp_output.sum_scale == b.mlp_output.sum_scale;
}
bool same(const Description& a, const Description& b) {
  const auto same_layer = [](const LayerDescription& one, const LayerDescription& other) {
    return same(one, other);
  };
  return a.spec == b.spec && a.tied == b.tied && a.final_norm == b.final_norm &&
         a.output.tensors() == b.output.tensors() &&
         std::equal(a.layers.begin(), a.layers.end(), b.layers.begin(), b.layers.end(), same_layer);
}

std::string shown(const Result<Description>& described) {
  if (described) return "a description";
  const Error& error = described.error();
  std::string place = error.place;
  const std::string_view left_out = " (left out)";
  const size_t at = place.find(left_out);
  if (at != place.npos) place.erase(at, left_out.size());
  return str(place, ": needs ", error.need, "; ", error.fact);
}
bool same(const Result<Description>& a, const Result<Description>& b) {
  return a && b ? same(*a, *b) : shown(a) == shown(b);
}

// A tiny model whose config changes while its tensors stay.
class Tiny {
 public:
  explicit Tiny(const std::string& name)
      : checkpoint_(testing::model_in(name == "qwen3_vl_moe"
                                          ? testing::golden_dir() + "/multimodal/" + name
                                          : testing::golden_folder(name))) {
    must(checkpoint_.write(folder_.path()));
    whole_ = checkpoint_.config;
    config_ = whole_.value("text_config", whole_);
  }
  const json& config() const { return config_; }
  Result<Description> with(const json& config) {
    checkpoint_.config = whole_;
    (whole_.contains("text_config") ? checkpoint_.config["text_config"] : checkpoint_.config) =
        config;
    must(checkpoint_.write_config(folder_.path()));
    MORACLE_TRY(const Checkpoint opened, Checkpoint::open(folder_.path()));
    return describe(opened);
  }
  Result<Description> without(const std::string& key) {
    json less = config_;
    less.erase(key);
    return with(less);
  }
  Result<Description> patched(const json& changes) {
    json other = config_;
    other.update(changes);
    return with(other);
  }

 private:
  SyntheticCheckpoint checkpoint_;
  testing::TemporaryFolder folder_;
  json whole_, config_;
};

std::vector<std::string> names_of(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

class ConfigDefaults : public ::testing::TestWithParam<std::string> {
 protected:
  const json golden_ = golden("defaults.json").at(GetParam());
  const json& defaults() const { return golden_.at("defaults"); }
  const json ours_ = json::parse(find_convention(GetParam())->defaults);
};

TEST_P(ConfigDefaults, AreThoseOfConfigurationClass) {
  for (const auto& [key, value] : ours_.items()) {
    ASSERT_TRUE(defaults().contains(key)) << key;
    EXPECT_EQ(value, defaults().at(key)) << key;
  }
}

// A value that no reader accepts changes the description or makes an error, if the key is read.
TEST_P(ConfigDefaults, HoldEveryKeyThatIsReadAndNoOther) {
  std::set<std::string> read;
  for (const auto& [name, ignored] : golden_.at("left_out").items()) {
    Tiny tiny(name);
    // These keys hide those from which they follow.
    for (const char* hiding : {"none", "layer_types", "mlp_layer_types", "moe_layers",
                               "no_rope_layers", "per_layer_config", "rope_parameters"}) {
      json base = tiny.config();
      if (base.erase(hiding) == 0 && hiding != std::string_view("none")) continue;
      const auto whole = tiny.with(base);
      for (const auto& [key, value] : defaults().items()) {
        json wrong = base;
        wrong[key] = {{"no", "value"}};
        if (!same(tiny.with(wrong), whole)) read.insert(key);
      }
    }
  }
  if (golden_.at("left_out").empty()) GTEST_SKIP() << "only the experts of this family are read";
  for (const auto& [key, value] : defaults().items()) {
    if (value.is_null()) continue;
    EXPECT_EQ(ours_.contains(key), read.contains(key)) << key;
  }
}

// Leaving a key out means the same as the values that the class then gives to it and to others.
// Sizes of the class do not fit tiny tensors: both ways must then give one error.
TEST_P(ConfigDefaults, MissingKeyMeansDefaultOfTheClass) {
  for (const auto& [name, left_out] : golden_.at("left_out").items()) {
    Tiny tiny(name);
    for (const auto& [key, value] : tiny.config().items()) {
      if (key == "architectures" || key == "model_type") continue;
      SCOPED_TRACE(str(name, " without ", key));
      json meant = json::object();
      if (left_out.contains(key)) {
        meant = left_out.at(key);
        if (meant.is_null()) continue;  // the class refuses to be without it
      } else if (defaults().contains(key)) {
        meant[key] = defaults().at(key);
      }
      const auto bare = tiny.without(key), full = tiny.patched(meant);
      EXPECT_TRUE(same(bare, full)) << shown(bare) << "\n" << shown(full);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, ConfigDefaults,
                         ::testing::ValuesIn(testing::sample_of(names_of(golden("defaults.json")),
                                                                "ConfigDefaults")),
                         [](const auto& param) { return param.param; });

TEST(ConfigDefaults, AreKnownForEveryFamily) {
  const json all = golden("defaults.json");
  for (const Family* family : families())
    EXPECT_TRUE(all.contains(family->architecture)) << family->architecture;
}

// ---- rotary settings ----

struct Rope {
  Rotary rotary;
  double scale = 0;  // of scores, with MLA
};
Rope rope_of(const Description& description) {
  for (const LayerDescription& layer : description.layers) {
    if (const auto* const latent = std::get_if<LatentDescription>(&layer.attention))
      return {latent->spec.rotary, latent->spec.scale};
    const auto* const heads = std::get_if<GroupedQueryDescription>(&layer.attention);
    if (heads != nullptr && heads->spec.rotary.frequencies[0] != 0) return {heads->spec.rotary, 0};
  }
  return {};
}

class RotarySettings : public ::testing::TestWithParam<std::string> {};

TEST_P(RotarySettings, GiveFrequenciesOfTransformers) {
  const json all = golden("rope.json"), &want = all.at("models").at(GetParam());
  Tiny tiny(GetParam());
  json bare = tiny.config();
  for (const char* key : {"rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
                          "rotary_dim", "original_max_position_embeddings"})
    bare.erase(key);
  for (const auto& [name, expected] : want.items()) {
    SCOPED_TRACE(name);
    json config = bare;
    config.update(all.at("cases").at(name));
    const auto described = tiny.with(config);
    ASSERT_TRUE(described) << described.error().to_string();
    const Rope got = rope_of(*described);
    const auto frequencies = expected.at("frequencies").get<std::vector<float>>();
    ASSERT_EQ(got.rotary.frequencies.size(), frequencies.size());
    for (size_t i = 0; i < frequencies.size(); ++i)
      EXPECT_NEAR(got.rotary.frequencies[i], frequencies[i], 1e-5 * frequencies[i]) << i;
    EXPECT_NEAR(got.rotary.factor, expected.value("factor", 1.0), 1e-6);
    if (!expected.contains("scale")) continue;
    EXPECT_NEAR(got.scale, expected.at("scale"), 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, RotarySettings,
                         ::testing::ValuesIn(names_of(golden("rope.json").at("models"))),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace moracle::config_defaults_test
