// Tests ModelOpt files with an algorithm for each module.
#include "checkpoint/producers/modelopt/modelopt_layers.h"
#include "checkpoint/reader_fixture.h"
#include "fp4_synthetic.h"
#include "modelopt_synthetic.h"

namespace moracle::testing::modelopt_mixed_test {
namespace {

using nlohmann::json;

constexpr const char* kSchemes[] = {"fp8-w8a8-tensor-static", "nvfp4-w4a16", "mxfp8-w8a8"};

// Attention in FP8, experts in NVFP4, the output in MXFP8, as Qwen3.6 and MiniMax-M3 mix them. All
// matrices are [64, 64], but the output.
SyntheticCheckpoint mixed() {
  SyntheticCheckpoint checkpoint = modelopt("FP8");
  const SyntheticCheckpoint experts = fp4::checkpoint_of({"NVFP4"}), other = modelopt("MXFP8");
  for (const auto& [name, tensor] : experts.tensors) {
    if (name.find(".experts.") != name.npos) checkpoint.tensors[name] = tensor;
  }
  checkpoint.remove(kAttention + "o_proj.input_scale");
  for (const char* part : {".weight", ".weight_scale"})
    checkpoint.tensors[kAttention + "o_proj" + part] =
        other.tensors.at(kAttention + "o_proj" + part);
  json layers = json::object();
  for (const char* name : {"q_proj", "k_proj", "v_proj"})
    layers[kAttention + name] = {{"quant_algo", "FP8"}};
  layers["model.layers.0.mlp.experts"] = {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}};
  layers[kAttention + "o_proj"] = {{"quant_algo", "MXFP8"}};
  checkpoint.quantization() = {{"quant_method", "modelopt"},
                               {"quant_algo", "MIXED_PRECISION"},
                               {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}},
                               {"ignore", {"lm_head", "mtp*"}},
                               {"quantized_layers", layers}};
  return checkpoint;
}

void expect_schemes(const SyntheticCheckpoint& checkpoint) {
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "modelopt");
  EXPECT_EQ(name(must(opened.linear(kQkv)).scheme()), kSchemes[0]);
  EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), kSchemes[1]);
  EXPECT_EQ(name(must(opened.linear({kAttention + "o_proj"})).scheme()), kSchemes[2]);
  EXPECT_TRUE(opened.linear({"lm_head"}).ok());
}

TEST(ModelOptMixed, GivesEachModuleItsAlgorithm) {
  expect_schemes(mixed());
  const std::vector<std::string> unused = must(mixed().open()).not_used();
  ASSERT_EQ(unused.size(), 1u) << "W4A16_NVFP4 drops no activations";
  EXPECT_THAT(unused[0], ::testing::StartsWith("FP8 keys and values"));
}

TEST(ModelOptMixed, ReadsHfQuantConfig) {
  auto checkpoint = mixed();
  json nested = checkpoint.quantization();
  nested.erase("quant_method");
  nested["exclude_modules"] = nested["ignore"];
  nested.erase("ignore");
  checkpoint.config.erase("quantization_config");
  checkpoint.files["hf_quant_config.json"] = json{{"quantization", nested}}.dump();
  expect_schemes(checkpoint);
}

TEST(ModelOptMixed, IdentifiesProducerByItsKeys) {
  for (const char* method : {"modelopt_mixed", "modelopt-fp4", "ModelOpt", ""}) {
    auto checkpoint = mixed();
    checkpoint.quantization()["quant_method"] = method;
    if (std::string(method).empty()) checkpoint.quantization().erase("quant_method");
    expect_schemes(checkpoint);
  }
}

TEST(ModelOptMixed, MatchesPatternsAndOtherPrefixes) {
  const json fp8 = {{"quant_algo", "FP8"}}, nvfp4 = {{"quant_algo", "NVFP4"}},
             mxfp8 = {{"quant_algo", "mxfp8"}};
  for (const std::string prefix : {"model.", "model.language_model.", "language_model.model."}) {
    auto checkpoint = mixed();
    checkpoint.quantization()["quantized_layers"] = {
        {prefix + "layers.*.self_attn.[qkv]_proj", fp8},
        {prefix + "layers.*.mlp.experts*", nvfp4},
        {prefix + "layers.0.self_attn.o_proj", mxfp8}};
    expect_schemes(checkpoint);
  }
}

// quantized_layers may lack modules, or lie in a file that was not published.
TEST(ModelOptMixed, InfersAlgorithmOfUnlistedModulesFromTensors) {
  auto checkpoint = mixed();
  for (auto& [module, entry] : checkpoint.quantization()["quantized_layers"].items())
    entry["quant_algo"] = nullptr;
  expect_schemes(checkpoint);
  checkpoint.quantization().erase("quantized_layers");
  expect_schemes(checkpoint);
  for (const auto& [algorithm, scheme] :
       {std::pair{"FP8_PER_CHANNEL_PER_TOKEN", "fp8-w8a8-channel"},
        std::pair{"FP8_PB_WO", "fp8-w8a8-block128x128"}, std::pair{"MXFP8", "mxfp8-w8a8"}}) {
    auto other = modelopt(algorithm);
    other.quantization()["quant_algo"] = "MIXED_PRECISION";
    EXPECT_EQ(name(must(other.experts()).spec.scheme), scheme);
  }
}

TEST(ModelOptMixed, RejectsModuleOfOtherAlgorithmByName) {
  auto checkpoint = mixed();
  checkpoint.quantization()["quantized_layers"][kAttention + "o_proj"] = {
      {"quant_algo", "W4A16_AWQ"}, {"group_size", 128}, {"has_zero_point", false}};
  EXPECT_TRUE(checkpoint.experts().ok()) << "only the module itself is refused";
  expect_unsupported(must(checkpoint.open()).linear({kAttention + "o_proj"}),
                     {"/config.json: quantized_layers: module '" + kAttention +
                          "o_proj': needs one "
                          "of FP8, ",
                      "it is W4A16_AWQ"});
}

TEST(ModelOptMixed, NamesTensorThatContradictsItsAlgorithm) {
  auto checkpoint = mixed();
  checkpoint.quantization()["quantized_layers"][kAttention + "o_proj"] = {{"quant_algo", "FP8"}};
  expect_bad(must(checkpoint.open()).linear({kAttention + "o_proj"}),
             {"tensor '" + kAttention + "o_proj.weight_scale'", "it is u8 [64, 2]"});
}

TEST(ModelOptLayers, PrefersNearestEntry) {
  const ModelOptLayers layers({{"model.layers.1", "A"},
                               {"model.layers.1.mlp", "B"},
                               {"model.layers.1.mlp.gate", "C"},
                               {"lm_head", "D"}},
                              {"model.layers.2*", "vision_tower*"});
  const auto of = [&](const std::string& module) {
    const std::string* const found = layers.algorithm_of(module);
    return found == nullptr ? "" : *found;
  };
  EXPECT_EQ(of("model.layers.1.self_attn.q_proj"), "A");
  EXPECT_EQ(of("language_model.model.layers.1.mlp.gate_proj"), "B");
  EXPECT_EQ(of("model.language_model.layers.1.mlp.gate"), "C");
  EXPECT_EQ(of("language_model.lm_head"), "D");
  EXPECT_EQ(of("model.layers.10.mlp.gate"), "");
  EXPECT_EQ(of("vision_tower.layers.1.mlp.gate"), "");
  EXPECT_TRUE(layers.excludes("language_model.model.layers.2.mlp.gate"));
  EXPECT_TRUE(layers.excludes("vision_tower.layers.1.mlp"));
  EXPECT_FALSE(layers.excludes("vision.layers.2.mlp"));
}

}  // namespace
}  // namespace moracle::testing::modelopt_mixed_test
