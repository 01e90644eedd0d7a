// Tests adapters in PEFT files: read for every layer and expert, or rejected by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "reader_fixture.h"

namespace moracle::testing::lora_test {
namespace {

using ::testing::HasSubstr;

/// An adapter in memory. Tests change it before it is written.
struct Adapter {
  nlohmann::json config = {{"peft_type", "LORA"},
                           {"r", 3},
                           {"lora_alpha", 6},
                           {"bias", "none"},
                           {"target_modules", {"gate_proj", "down_proj"}}};
  std::vector<TensorBytes> tensors;

  void add(const std::string& name, std::vector<int64_t> shape, float first) {
    std::vector<float> values(shape[0] * shape[1]);
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    tensors.push_back({"base_model.model." + name, DType::kF32, shape, bytes_of(values)});
  }
  void add_pair(const std::string& module, int64_t rank, int64_t n, int64_t k, float first) {
    add(module + ".lora_A.weight", {rank, k}, first);
    add(module + ".lora_B.weight", {n, rank}, -first);
  }
};

class LoraFiles : public ::testing::Test {
 protected:
  Adapter good() {
    Adapter adapter;
    for (int64_t e : {0, 2}) {
      adapter.add_pair(SyntheticCheckpoint::expert(1, e, "gate_proj"), 3, 16, 32,
                       static_cast<float>(e));
      adapter.add_pair(SyntheticCheckpoint::expert(1, e, "down_proj"), 2, 32, 16,
                       static_cast<float>(e) + 100);
    }
    return adapter;
  }
  Result<LoraAdapter> open(const Adapter& adapter) {
    must(write_safetensors(folder_.path() + "/adapter_model.safetensors", adapter.tensors));
    folder_.write("adapter_config.json", adapter.config.dump());
    return LoraAdapter::open(folder_.path(), *checkpoint_.open());
  }
  void expect_error(const Adapter& adapter, ErrorKind kind, const char* text) {
    const auto opened = open(adapter);
    ASSERT_FALSE(opened) << text;
    EXPECT_EQ(opened.error().kind, kind) << text;
    EXPECT_THAT(opened.error().to_string(), HasSubstr(text));
  }
  SyntheticCheckpoint checkpoint_ = SyntheticCheckpoint::plain();
  TemporaryFolder folder_;
};

TEST_F(LoraFiles, ReadTheMatricesOfEveryModule) {
  const LoraAdapter adapter = must(open(good()));
  EXPECT_EQ(adapter.rank, 3);
  ASSERT_EQ(adapter.layers.size(), 1u);
  const LoraWeights& layer = adapter.layers.at(1);
  ASSERT_EQ(layer.gate.size(), 4u);
  EXPECT_TRUE(layer.up.empty());
  EXPECT_EQ(layer.gate[1].rank, 0);
  EXPECT_EQ(layer.gate[2].rank, 3);
  EXPECT_EQ(layer.gate[2].scale, 2);  // alpha 6 / rank 3
  ASSERT_EQ(layer.gate[2].a.size(), 3u * 32);
  EXPECT_EQ(layer.gate[2].a[33], 2 + 33);
  EXPECT_EQ(layer.down[0].rank, 2);
  EXPECT_EQ(layer.down[0].scale, 3);
  EXPECT_EQ(layer.down[0].b[5], -100 + 5);
}

TEST_F(LoraFiles, ApplyRsloraAndRankPatterns) {
  Adapter adapter = good();
  adapter.config["use_rslora"] = true;
  adapter.config["alpha_pattern"] = {{"experts.2.gate_proj", 12}};
  const LoraAdapter read = must(open(adapter));
  EXPECT_FLOAT_EQ(read.layers.at(1).gate[0].scale, 6 / std::sqrt(3.0f));
  EXPECT_FLOAT_EQ(read.layers.at(1).gate[2].scale, 12 / std::sqrt(3.0f));
}

// The text-only class and the wrappers name the same modules differently.
TEST_F(LoraFiles, NamesOfAnotherClassMeanTheSameModules) {
  const std::string roots[] = {"model.", "model.language_model.", "language_model.model."};
  const std::string query = "layers.1.self_attn.q_proj", gate = "layers.1.mlp.experts.2.gate_proj";
  const SyntheticCheckpoint plain = checkpoint_;
  for (const std::string& stored : roots) {
    checkpoint_.tensors.clear();
    for (const auto& [name, tensor] : plain.tensors) {
      const bool inside = name.starts_with("model.");
      const bool output = stored == "language_model.model." && name.starts_with("lm_head");
      const std::string own = inside   ? stored + name.substr(6)
                              : output ? "language_model." + name
                                       : name;
      checkpoint_.tensors[own] = tensor;
      checkpoint_.tensors[own].name = own;
    }
    const bool wrapped = stored == "language_model.model.";
    for (const std::string& trained : roots) {
      Adapter adapter;
      adapter.config["alpha_pattern"] = {{trained + gate, 12}};
      adapter.add_pair(trained + query, 3, 32, 32, 1);
      adapter.add_pair(trained + gate, 3, 16, 32, 5);
      adapter.add_pair(trained == roots[2] ? "language_model.lm_head" : "lm_head", 3, 24, 32, 9);
      // All experts of a layer as one parameter.
      adapter.add_pair(trained + "layers.0.mlp.experts", 4 * 2, 32, 16, 7);
      const LoraAdapter read = must(open(adapter));
      EXPECT_EQ(read.modules.at(stored + query).a[0], 1);
      EXPECT_EQ(read.modules.at(wrapped ? "language_model.lm_head" : "lm_head").a[0], 9);
      EXPECT_EQ(read.layers.at(1).gate[2].scale, 4);
      EXPECT_EQ(read.layers.at(0).down[3].rank, 2);
      // Two adapters of one module, under both of its names.
      adapter.add_pair(roots[trained == roots[0]] + query, 3, 32, 32, 2);
      expect_error(adapter, ErrorKind::kUnsupported, "needs one adapter for each linear layer");
    }
  }
}

TEST_F(LoraFiles, RejectDefectByName) {
  const std::string gate = SyntheticCheckpoint::expert(1, 1, "gate_proj");
  Adapter bad = good();
  bad.add(gate + ".lora_A.weight", {3, 32}, 1);
  expect_error(bad, ErrorKind::kBadFile, "experts.1.gate_proj.lora_B.weight");
  bad = good();
  bad.add_pair(gate, 3, 16, 31, 1);
  expect_error(bad, ErrorKind::kBadFile, "shape [rank, 32]; it is f32 [3, 31]");
  bad = good();
  bad.add_pair(gate, 3, 17, 32, 1);
  expect_error(bad, ErrorKind::kBadFile, "shape [16, 3]; it is f32 [17, 3]");
  bad = good();
  bad.add_pair("model.layers.1.self_attn.extra", 3, 32, 32, 1);
  expect_error(bad, ErrorKind::kUnsupported, "self_attn.extra.lora_A.weight");
  bad = good();
  bad.add_pair(SyntheticCheckpoint::expert(1, 4, "gate_proj"), 3, 16, 32, 1);
  expect_error(bad, ErrorKind::kUnsupported, "experts.4.gate_proj");
  bad = good();
  bad.add_pair(gate, 3, 16, 32, NAN);
  expect_error(bad, ErrorKind::kBadFile, "finite");
  bad = good();
  bad.tensors.clear();
  expect_error(bad, ErrorKind::kBadFile, "it has none");
}

TEST_F(LoraFiles, RejectInvalidScaleByKey) {
  Adapter bad = good();
  for (const double wild : {1e39, -1e39, 1000001.0}) {
    bad.config["lora_alpha"] = wild;
    expect_error(bad, ErrorKind::kBadFile, "lora_alpha: needs a number from -1000000 to 1000000");
  }
  bad = good();
  for (const nlohmann::json& wild : {nlohmann::json(1e39), nlohmann::json("8")}) {
    bad.config["alpha_pattern"] = {{"gate_proj", wild}};
    expect_error(bad, ErrorKind::kBadFile,
                 "alpha_pattern: needs a number from -1000000 to 1000000 for each pattern; "
                 "gate_proj has ");
  }
}

TEST_F(LoraFiles, RejectOtherAdapterTypeByKey) {
  const struct {
    const char* key;
    nlohmann::json value;
    const char* text;
  } wrong[] = {{"peft_type", "IA3", "peft_type: needs LORA; it is IA3"},
               {"bias", "all", "bias: needs none; it is all"}};
  for (const auto& [key, value, text] : wrong) {
    Adapter adapter = good();
    adapter.config[key] = value;
    expect_error(adapter, ErrorKind::kUnsupported, text);
  }
  const auto nothing = LoraAdapter::open("/nowhere", *checkpoint_.open());
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().to_string(), HasSubstr("adapter_config.json"));
}

// Each value is one that PEFT can save and that changes the formula or the base weights.
TEST_F(LoraFiles, RejectKeyThatChangesTheArithmetic) {
  const std::pair<const char*, nlohmann::json> wrong[] = {
      {"use_dora", true},
      {"fan_in_fan_out", true},
      {"lora_bias", true},
      {"modules_to_save", {"lm_head"}},
      {"layer_replication", {{0, 4}, {2, 5}}},
      {"alora_invocation_tokens", {1, 2}},
      {"trainable_token_indices", {{"embed_tokens", {1}}}},
      {"use_qalora", true},
      {"use_bdlora", {{"nblocks", 2}}},
      {"arrow_config", {{"top_k", 3}}},
      {"kasa_config", {{"beta", 0.1}}},
      {"monteclora_config", {{"num_samples", 4}}},
      {"a_key_that_comes_later", 1}};
  for (const auto& [key, value] : wrong) {
    Adapter adapter = good();
    adapter.config[key] = value;
    const std::string line = str(
        key, ": needs to be absent, null or false, because Moracle does not support it; it is ");
    expect_error(adapter, ErrorKind::kUnsupported, line.c_str());
    for (const nlohmann::json& unset :
         {nlohmann::json(), nlohmann::json(false), nlohmann::json::array()}) {
      adapter.config[key] = unset;
      EXPECT_TRUE(open(adapter)) << key << " " << unset;
    }
  }
}

// PiSSA and similar methods move a part of the base weights into the adapter.
TEST_F(LoraFiles, RejectInitializationThatChangesTheBase) {
  for (const char* changed : {"pissa", "pissa_niter_16", "olora", "OLoRA", "corda", "loftq",
                              "lora_ga", "one_that_comes_later"}) {
    Adapter adapter = good();
    adapter.config["init_lora_weights"] = changed;
    const std::string fact = str("it is \"", changed, "\"");
    expect_error(adapter, ErrorKind::kUnsupported, fact.c_str());
    expect_error(adapter, ErrorKind::kUnsupported,
                 "init_lora_weights: needs true, false, gaussian, eva, orthogonal or mica");
    expect_error(adapter, ErrorKind::kUnsupported, "path_initial_model_for_weight_conversion");
  }
  for (const nlohmann::json& same :
       {nlohmann::json(true), nlohmann::json(false), nlohmann::json("gaussian"),
        nlohmann::json("Gaussian"), nlohmann::json("eva"), nlohmann::json("orthogonal"),
        nlohmann::json("mica")}) {
    Adapter adapter = good();
    adapter.config["init_lora_weights"] = same;
    EXPECT_TRUE(open(adapter)) << same;
  }
}

// The keys of a plain adapter in PEFT 0.20, and keys that only describe training.
TEST_F(LoraFiles, IgnoreTrainingKeys) {
  Adapter adapter = good();
  adapter.config.update({{"task_type", "CAUSAL_LM"},
                         {"peft_version", "0.20.0"},
                         {"base_model_name_or_path", "a/model"},
                         {"revision", nullptr},
                         {"inference_mode", true},
                         {"auto_mapping", nullptr},
                         {"lora_dropout", 0.1},
                         {"rank_pattern", {{"down_proj", 2}}},
                         {"exclude_modules", {"lm_head"}},
                         {"layers_to_transform", {1}},
                         {"layers_pattern", "layers"},
                         {"megatron_core", "megatron.core"},
                         {"loftq_config", {{"loftq_bits", 4}}},
                         {"eva_config", {{"rho", 2.0}}},
                         {"corda_config", {{"corda_method", "kpm"}}},
                         {"lora_ga_config", {{"direction", "ArB2r"}}},
                         {"velora_config", {{"num_groups", 8}}},
                         {"qalora_group_size", 16},
                         {"ensure_weight_tying", true},
                         {"use_rslora", false},
                         {"target_parameters", {"mlp.experts.gate_up_proj"}}});
  const LoraAdapter plain = must(open(good())), same = must(open(adapter));
  EXPECT_EQ(same.layers.at(1).gate[2].scale, plain.layers.at(1).gate[2].scale);
  EXPECT_EQ(same.layers.at(1).gate[2].a, plain.layers.at(1).gate[2].a);
}

}  // namespace
}  // namespace moracle::testing::lora_test
