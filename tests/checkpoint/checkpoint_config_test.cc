// Tests which properties of a checkpoint the config decides, and which the files decide.
#include <filesystem>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/config.h"
#include "expect_error.h"
#include "moracle/model.h"
#include "synthetic_checkpoint.h"

namespace moracle::checkpoint_config_test {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_error;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;

const std::string kRouter = "model.layers.0.mlp.gate";

Result<Outline> outline_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return outline(opened);
}
Result<ModelPlan> plan_of(const SyntheticCheckpoint& checkpoint) {
  MORACLE_TRY(const Checkpoint opened, checkpoint.open());
  return plan(opened);
}

TEST(Checkpoint, RejectsPathThatIsNotAFolder) {
  const TemporaryFolder folder;
  const std::string absent = folder.path() + "/absent";
  expect_bad(Checkpoint::open(absent),
             {absent + ": needs the folder of a checkpoint; the folder does not exist"});
  const std::string file = folder.write("file", "");
  expect_bad(Checkpoint::open(file),
             {file + ": needs the folder of a checkpoint, or a GGUF file; it is another file"});
  EXPECT_FALSE(Checkpoint::open("").ok());
  EXPECT_FALSE(Checkpoint::open(std::string(10'000, 'x')).ok());
  EXPECT_FALSE(Checkpoint::open(std::string("a\0b", 3)).ok());
}

TEST(Checkpoint, RejectsFolderWithoutCheckpointFiles) {
  const TemporaryFolder folder;
  expect_bad(Checkpoint::open(folder.path()),
             {folder.path() + ": needs config.json; the folder has none"});
  ASSERT_TRUE(SyntheticCheckpoint::plain().write_config(folder.path()).ok());
  expect_bad(Checkpoint::open(folder.path()), {folder.path(), "the folder has neither"});
  folder.write("config.json", "{");
  expect_bad(Checkpoint::open(folder.path()),
             {folder.path() + "/config.json: line 1, column 2: needs valid JSON"});
}

TEST(Checkpoint, ReportsFileThatCannotBeOpened) {
  for (const char* name :
       {"quantize_config.json", "hf_quant_config.json", "model.safetensors.index.json"}) {
    const TemporaryFolder folder;
    ASSERT_TRUE(SyntheticCheckpoint::plain().write(folder.path()).ok());
    std::filesystem::create_symlink(name, folder.path() + "/" + name);
    expect_error(Checkpoint::open(folder.path()), ErrorKind::kIo,
                 {folder.path() + "/" + name + ": needs a readable file"});
  }
}

TEST(Checkpoint, NamesKeyOfInvalidConfig) {
  const std::pair<json, const char*> cases[] = {
      {{{"architectures", nullptr}}, "architectures: needs one architecture; there are 0"},
      {{{"architectures", {"A", "B"}}}, "architectures: needs one architecture; there are 2"},
      {{{"architectures", "A"}}, "architectures: needs an array of strings; it is \"A\""},
      {{{"num_hidden_layers", 0}},
       "num_hidden_layers: needs a whole number from 1 to 10000; it is 0"},
      {{{"num_hidden_layers", 10'001}}, "num_hidden_layers: needs a whole number"},
      {{{"num_experts", nullptr}},
       "num_experts or num_local_experts or n_routed_experts: needs a whole number"},
      {{{"num_experts", -1}},
       "num_experts or num_local_experts or n_routed_experts: needs a whole number"},
      {{{"num_experts", 9223372036854775808u}}, "it is 9223372036854775808"},
      {{{"num_experts_per_tok", 5}},
       "num_experts_per_tok or experts_per_token: needs a whole number from 1 to 4; it is 5"},
      {{{"num_experts_per_tok", 0}},
       "num_experts_per_tok or experts_per_token: needs a whole number from 1 to 4; it is 0"},
      {{{"hidden_size", 32.5}}, "hidden_size: needs a whole number"},
      {{{"hidden_size", "32"}}, "hidden_size: needs a whole number"},
      {{{"moe_intermediate_size", nullptr}}, "moe_intermediate_size: needs a whole number"},
      {{{"norm_topk_prob", 1}}, "norm_topk_prob: needs true or false; it is 1"},
      {{{"hidden_act", 1}}, "hidden_act: needs a string; it is 1"},
      {{{"num_attention_heads", nullptr}}, "num_attention_heads: needs a whole number"},
      {{{"num_key_value_heads", 3}},
       "num_key_value_heads or num_attention_groups: needs a whole number from 1 to 2; it is 3"},
      {{{"head_dim", 15}}, "head_dim: needs an even number; it is 15"},
      {{{"vocab_size", 0}}, "vocab_size: needs a whole number"},
      {{{"mlp_only_layers", {0.5}}}, "mlp_only_layers: needs whole numbers; it has 0.5"},
      {{{"tie_word_embeddings", "no"}}, "tie_word_embeddings: needs true or false"},
      {{{"rope_theta", "big"}}, "rope_theta: needs a number; it is \"big\""},
      {{{"rope_theta", 1}}, "rope_theta: needs a number above 1; it is 1"},
      {{{"rope_scaling", "yarn"}}, "rope_scaling: needs an object; it is \"yarn\""},
      {{{"rope_scaling", {{"type", "yarn"}}}},
       "rope_scaling.factor: needs a number above 0; it is missing"},
      {{{"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", -1}}}},
       "rope_scaling.beta_fast: needs a number above 0; it is -1"},
      {{{"quantization_config", 4}}, "quantization_config: needs an object; it is 4"},
      {{{"quantization_config", json::object()}},
       "quantization_config.quant_method: needs a string"},
  };
  for (const auto& [change, line] : cases) {
    auto bad = SyntheticCheckpoint::plain();
    bad.config.update(change);
    expect_bad(outline_of(bad), {"/config.json: ", line});
  }
}

TEST(Checkpoint, RejectsUnsupportedFeatureByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"architectures", {"LlamaForCausalLM"}}},
       "SolarOpenForCausalLM, Step3p7ForConditionalGeneration, Step3p7FlashForCausalLM; it is "
       "'LlamaForCausalLM'; its "
       "experts can be "
       "used: "
       "2 layers of 4 experts, top-2, hidden size 32, intermediate size 16, bf16, "},
      {{{"hidden_act", "tanh"}},
       "hidden_act: needs an activation function with a gate; it is tanh"},
      {{{"layer_types", {"full_attention", "chunked_attention"}}},
       "layer_types: needs full_attention; it has chunked_attention"},
      {{{"rope_scaling", {{"type", "longrope"}}}},
       "needs default, dynamic, linear, llama3, proportional or yarn; it is longrope"},
      {{{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}},
       "rope_parameters.full_attention: needs one setting for all layers; it is an object"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor: needs 1; it is 0.5"},
      {{{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
       "quantization_config.quant_method: needs one of gptq, awq, compressed-tensors, fp8, mxfp8, "
       "modelopt, modelopt-fp4, modelopt-fp8, modelopt-mxfp8, modelopt-mixed, mxfp4, auto-round, "
       "intel/auto-round, inc; it is "
       "'bitsandbytes'"},
      {{{"quantization_config", {{"quant_method", "quark"}}}}, "it is 'quark'"},
  };
  for (const auto& [change, line] : cases) {
    auto other = SyntheticCheckpoint::plain();
    other.config.update(change);
    expect_unsupported(plan_of(other), {"/config.json: ", line});
  }
  auto beside = SyntheticCheckpoint::plain();
  beside.files["hf_quant_config.json"] = R"({"quantization": {"quant_algo": "INT4_AWQ"}})";
  expect_unsupported(beside.open(), {"/hf_quant_config.json: ", "quant_algo", "INT4_AWQ"});
}

TEST(Config, MissingKeyMeansItsDefaultAndNullMeansNone) {
  auto config = Config::parse(R"({"a": null, "b": 3, "object": null})", "config.json");
  ASSERT_TRUE(config);
  ASSERT_TRUE(config->set_defaults(R"({"a": 1, "b": 2, "c": 4, "object": {"d": 5}})"));
  EXPECT_FALSE(config->has({"a"}));
  EXPECT_EQ(*config->integer_or(7, {"a"}), 7);
  EXPECT_EQ(*config->integer({"b"}), 3);
  EXPECT_EQ(*config->integer({"c"}), 4);
  // Another name of the same value takes precedence over the default, even with value null.
  EXPECT_EQ(*config->integer({"c", "b"}), 3);
  EXPECT_FALSE(config->has({"c", "a"}));
  EXPECT_EQ(*(*config->object({"object"}))->integer({"d"}), 5);
  expect_bad(config->integer({"c"}, 5), {"config.json: c (left out): needs a whole number from 5"});
  expect_bad(config->set_defaults("{"), {"config.json: line 1, column 2: needs valid JSON"});
}

// transformers replaces the newer settings by those of the older name, unless they are empty.
TEST(Checkpoint, RopeScalingOverridesRopeParameters) {
  auto both = SyntheticCheckpoint::plain();
  both.config["rope_parameters"] = {{"rope_type", "default"}};
  both.config["rope_scaling"] = {{"rope_type", "linear"}};
  expect_bad(plan_of(both), {"rope_scaling.factor: needs a number above 0; it is missing"});
  both.config["rope_scaling"] = json::object();
  EXPECT_TRUE(plan_of(both));
}

TEST(Checkpoint, ReadsBothTransformersConfigDialects) {
  auto newer = SyntheticCheckpoint::plain();
  newer.config.erase("num_experts");
  newer.config.erase("rope_theta");
  newer.config.update({{"num_local_experts", 4},
                       {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5000.0}}},
                       {"rope_scaling", nullptr}});
  const auto described = outline_of(newer);
  ASSERT_TRUE(described.ok()) << described.error().to_string();
  EXPECT_EQ(described->num_experts, 4);
}

TEST(Checkpoint, NamesLayerWithoutExperts) {
  const auto checkpoint = SyntheticCheckpoint::plain().open();
  ASSERT_TRUE(checkpoint.ok());
  for (const int64_t layer : {int64_t{2}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    expect_error(checkpoint->moe_layer(layer), ErrorKind::kInvalidArgument,
                 {str("layer ", layer),
                  "needs a layer with experts, one of 0, 1; this layer has no experts"});
  }
}

TEST(Checkpoint, NamesMissingExpertsOfOneLayer) {
  auto checkpoint = SyntheticCheckpoint::plain();
  std::erase_if(checkpoint.tensors, [](const auto& item) {
    return item.first.find("layers.1.mlp.experts.") != std::string::npos;
  });
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok());
  expect_error(
      opened->moe_layer(1), ErrorKind::kInvalidArgument,
      {"layer 1", "this layer has no experts, such as", "model.layers.1.mlp.experts.0.gate_proj"});
}

TEST(Checkpoint, NamesMissingExpertsOfAllLayers) {
  auto checkpoint = SyntheticCheckpoint::plain();
  std::erase_if(checkpoint.tensors,
                [](const auto& item) { return item.first.find(".experts.") != std::string::npos; });
  expect_bad(checkpoint.experts(), {"layer 0: needs experts, such as model.layers.0.mlp.experts.",
                                    "the file has no tensor of experts in any layer"});
}

TEST(Checkpoint, NamesMlxFolder) {
  auto checkpoint = SyntheticCheckpoint::plain();
  const json mlx = {{"group_size", 64}, {"bits", 4}};
  checkpoint.config["quantization"] = checkpoint.config["quantization_config"] = mlx;
  expect_unsupported(checkpoint.open(),
                     {"/config.json: quantization: needs the model in another form",
                      "this folder is quantized for MLX (bits 4, group_size 64)"});
}

TEST(Checkpoint, ReadsOlderKeyOfCompressedTensors) {
  auto checkpoint = SyntheticCheckpoint::int8();
  json& older = checkpoint.config["compression_config"] = checkpoint.quantization();
  older["quantization_status"] = "frozen";
  checkpoint.config.erase("quantization_config");
  for (const bool named : {true, false}) {
    if (!named) older.erase("quant_method");
    const auto opened = checkpoint.open();
    ASSERT_TRUE(opened.ok()) << opened.error().to_string();
    EXPECT_EQ(opened->producer(), "compressed-tensors");
    const auto experts = opened->moe_layer(0);
    ASSERT_TRUE(experts.ok()) << experts.error().to_string();
    EXPECT_EQ(name(experts->spec.scheme), "int8-w8a8");
  }
}

TEST(Checkpoint, DenseLayerHasNoExperts) {
  auto checkpoint = SyntheticCheckpoint::plain();
  std::erase_if(checkpoint.tensors,
                [](const auto& item) { return item.first.starts_with("model.layers.0.mlp."); });
  for (const auto& [part, n, k] :
       {std::tuple{"gate_proj", 64, 32}, {"up_proj", 64, 32}, {"down_proj", 32, 64}}) {
    checkpoint.add_floats(str("model.layers.0.mlp.", part, ".weight"), {n, k});
  }
  checkpoint.config["mlp_only_layers"] = {0};
  checkpoint.config["intermediate_size"] = 64;
  EXPECT_EQ(checkpoint.open()->moe_layers(), (std::vector<int64_t>{1}));
  const auto described = outline_of(checkpoint);
  EXPECT_TRUE(described.ok()) << described.error().to_string();
}

TEST(Checkpoint, TiedOutputUsesEmbedding) {
  auto tied = SyntheticCheckpoint::plain();
  tied.config["tie_word_embeddings"] = true;
  tied.remove("lm_head.weight");
  const auto described = outline_of(tied);
  EXPECT_TRUE(described.ok()) << described.error().to_string();
  tied.config["tie_word_embeddings"] = false;
  expect_bad(outline_of(tied),
             {"module 'lm_head'", "needs lm_head.weight", "the file has no such tensor"});
}

// Tools that quantize keep the layers for multi-token prediction and drop their config key.
TEST(Checkpoint, ListsMultiTokenPredictionThatConfigDoesNotMention) {
  auto checkpoint = SyntheticCheckpoint::plain();
  for (const char* name :
       {"model.layers.2.eh_proj.weight", "model.layers.2.mlp.up_proj.weight", "mtp.fc.weight",
        "model.mtp.layers.0.mlp.up_proj.weight", "model.mtp_block.0.mlp.up_proj.weight"}) {
    checkpoint.add_floats(name, {8, 8});
  }
  // Without enorm the layer may be one that config.json should count.
  expect_bad(outline_of(checkpoint),
             {"tensor 'model.layers.2.eh_proj.weight'", "the model does not use it"});
  checkpoint.add_floats("model.layers.2.enorm.weight", {32});
  const auto described = outline_of(checkpoint);
  ASSERT_TRUE(described.ok()) << described.error().to_string();
  const auto part = std::find_if(described->parts.begin(), described->parts.end(), [](auto& one) {
    return one.what == "multi-token prediction, not run";
  });
  ASSERT_NE(part, described->parts.end());
  EXPECT_EQ(part->num_tensors, 6);
}

TEST(Checkpoint, IgnoresUnusedBuffers) {
  auto checkpoint = SyntheticCheckpoint::plain();
  checkpoint.add<float>("model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}, {1, 2});
  // transformers writes these where config.json has no shared experts.
  checkpoint.add<float>("model.layers.0.mlp.shared_experts.up_proj.weight", DType::kF32, {0, 16},
                        {});
  const auto described = outline_of(checkpoint);
  EXPECT_TRUE(described.ok()) << described.error().to_string();
}

TEST(Checkpoint, RejectsExpertsOfDifferentSchemes) {
  auto mixed = SyntheticCheckpoint::gptq();
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string module = SyntheticCheckpoint::expert(0, 2, part);
    const bool down = module.ends_with("down_proj");
    for (const char* tensor : {".qweight", ".qzeros", ".scales", ".g_idx"})
      mixed.remove(module + tensor);
    mixed.add_floats(module + ".weight", {down ? 32 : 16, down ? 16 : 32});
  }
  expect_bad(mixed.experts(),
             {"model.safetensors",
              "tensor '" + SyntheticCheckpoint::expert(0, 2, "gate_proj.weight") + "'",
              "needs the scheme of expert 0, int4-w4a16-g8 [32, 32], because one kernel multiplies "
              "all experts; it is bf16 [32, 32]"});
}

TEST(Checkpoint, RejectsGateAndUpOfDifferentSchemes) {
  auto mixed = SyntheticCheckpoint::int8();
  const std::string up = SyntheticCheckpoint::expert(0, 0, "up_proj");
  mixed.remove(up + ".weight_scale");
  mixed.add_floats(up + ".weight", {16, 32});
  expect_bad(mixed.experts(), {"model.safetensors", "module '" + up + "'",
                               "needs the same scheme and input size as", "it is bf16 [16, 32]"});
}

TEST(Checkpoint, RejectsDifferentActivationsOfTwoGemms) {
  auto mixed = SyntheticCheckpoint::int8();
  for (int e = 0; e < 4; ++e) {
    const std::string down = SyntheticCheckpoint::expert(0, e, "down_proj");
    mixed.remove(down + ".weight_scale");
    mixed.add_floats(down + ".weight", {32, 16});
  }
  expect_unsupported(
      mixed.experts(),
      {"model.safetensors", "module 'model.layers.0.mlp.experts.0.down_proj'",
       "needs the activations of 'model.layers.0.mlp.experts.0.gate_proj', int8-w8a8",
       "it is bf16"});
}

TEST(Checkpoint, AcceptsPlainRouterWithoutConfigEntry) {
  const auto gptq = SyntheticCheckpoint::gptq().open()->router(kRouter);
  ASSERT_TRUE(gptq.ok()) << gptq.error().to_string();
  EXPECT_EQ(name(gptq->scheme()), "bf16");
  // compressed-tensors: "Linear" targets the router too if no entry ignores it.
  auto int8 = SyntheticCheckpoint::int8();
  int8.quantization()["ignore"] = json::array();
  const auto router = int8.open()->router(kRouter);
  ASSERT_TRUE(router.ok()) << router.error().to_string();
  EXPECT_EQ(name(router->scheme()), "bf16");
}

TEST(Checkpoint, StoredTensorsDecideForRouter) {
  auto gptq = SyntheticCheckpoint::gptq({}, {.experts = 8});
  gptq.add_gptq(kRouter, 8, 32, {});
  gptq.quantization()["dynamic"] = {{"-:.*mlp\\.gate$", json::object()}};
  auto router = gptq.open()->router(kRouter);
  ASSERT_TRUE(router.ok()) << router.error().to_string();
  EXPECT_EQ(name(router->scheme()), "bf16");
  gptq.remove(kRouter + ".weight");
  router = gptq.open()->router(kRouter);
  ASSERT_TRUE(router.ok()) << router.error().to_string();
  EXPECT_EQ(name(router->scheme()), "int4-w4a16-g8");
  const auto described = outline_of(gptq);
  EXPECT_TRUE(described.ok()) << described.error().to_string();
}

TEST(Checkpoint, RejectsModuleStoredTwice) {
  auto twice = SyntheticCheckpoint::gptq();
  const std::string weight = SyntheticCheckpoint::expert(0, 1, "gate_proj.weight");
  twice.add_floats(weight, {16, 32});
  expect_bad(twice.experts(), {"tensor '" + weight + "'", "the model does not use it"});
}

TEST(Checkpoint, RejectsQuantizedFilesWithoutQuantizationConfig) {
  auto gptq = SyntheticCheckpoint::gptq();
  gptq.config["quantization_config"] = nullptr;
  const std::string line =
      "module 'model.layers.0.mlp.experts.0.gate_proj': needs "
      "model.layers.0.mlp.experts.0.gate_proj.weight, or a quantization_config in config.json; it "
      "has g_idx, qweight, qzeros, scales, the form of a quantized checkpoint, and config.json "
      "says "
      "nothing about it";
  expect_bad(gptq.experts(), {line});
  gptq.config["architectures"] = {"UnknownForCausalLM"};
  expect_unsupported(outline_of(gptq),
                     {"it is 'UnknownForCausalLM'; its experts cannot be used", line});
  auto int8 = SyntheticCheckpoint::int8();
  int8.config.erase("quantization_config");
  expect_bad(int8.experts(), {"tensor 'model.layers.0.mlp.experts.0.gate_proj.weight'",
                              "needs bf16, f16 or f32 of two dimensions; it is i8 [16, 32]"});
}

TEST(Checkpoint, ClaimsTensorsOnlyWhenRead) {
  const auto checkpoint = SyntheticCheckpoint::plain().open();
  ASSERT_TRUE(checkpoint.ok());
  const size_t all = checkpoint->unclaimed().size();
  EXPECT_TRUE(checkpoint->has_tensor("lm_head.weight"));
  EXPECT_FALSE(checkpoint->has_tensor("lm_head"));
  EXPECT_EQ(checkpoint->unclaimed().size(), all);
  EXPECT_EQ(to_string(*checkpoint->tensor("lm_head.weight")), "bf16 [24, 32]");
  EXPECT_EQ(checkpoint->unclaimed().size(), all - 1);
  expect_bad(checkpoint->tensor("absent"), {"tensor 'absent'", "it is missing"});
  EXPECT_EQ(checkpoint->unclaimed().size(), all - 1);
}

}  // namespace
}  // namespace moracle::checkpoint_config_test
