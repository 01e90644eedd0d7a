// Tests the compressed-tensors reader: int8 weights per channel, int8 activations per token.
#include "checkpoint/reader_fixture.h"

namespace moracle::testing::compressed_tensors_test {
namespace {

using nlohmann::json;

// value = code · scale[n].
Value published(const SyntheticCheckpoint& checkpoint) {
  return [&checkpoint](const std::string& module, int64_t n, int64_t k) {
    const TensorBytes& scales = checkpoint.tensors.at(module + ".weight_scale");
    const double scale = scales.dtype == DType::kF32
                             ? checkpoint.get<float>(scales.name, n)
                             : bf16_to_float(checkpoint.get<uint16_t>(scales.name, n));
    const int64_t width = checkpoint.tensors.at(module + ".weight").shape[1];
    return checkpoint.get<int8_t>(module + ".weight", n * width + k) * scale;
  };
}

TEST(CompressedTensors, DequantizesToPublishedValues) {
  const auto checkpoint = SyntheticCheckpoint::int8();
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "compressed-tensors");
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme), "int8-w8a8");
  EXPECT_EQ(weights.spec.scheme.activation, kInt8DynamicTokenSym);
  expect_values(weights, 1, published(checkpoint));
}

TEST(CompressedTensors, LowestCodeIsMinus128) {
  auto checkpoint = SyntheticCheckpoint::int8();
  std::vector<int8_t> codes(32 * 16, -128);
  checkpoint.add(kDown + ".weight", DType::kI8, {32, 16}, codes);
  const DescribedWeights weights = must(checkpoint.experts());
  std::vector<double> row(16);
  unpack_row(must(weights.w2.expert(1)), 3, row.data());
  EXPECT_EQ(row, std::vector<double>(16, -128.0));
}

TEST(CompressedTensors, AcceptsScalesOfOneOrTwoDimensions) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{32, 1}, {32}}) {
    auto checkpoint = SyntheticCheckpoint::int8();
    checkpoint.reshape(kDown + ".weight_scale", shape);
    expect_values(must(checkpoint.experts()).w2, 1, {kDown}, published(checkpoint));
  }
}

TEST(CompressedTensors, AcceptsF32Scales) {
  auto checkpoint = SyntheticCheckpoint::int8();
  std::vector<float> scales(32);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = 1.0f / static_cast<float>(3 + i);
  checkpoint.add(kDown + ".weight_scale", DType::kF32, {32, 1}, scales);
  expect_values(must(checkpoint.experts()).w2, 1, {kDown}, published(checkpoint));
}

TEST(CompressedTensors, NamesNonFiniteScale) {
  for (const auto& [bits, shown] : {std::pair{0x7fc0, "nan"}, {0x7f80, "inf"}, {0xff80, "-inf"}}) {
    auto checkpoint = SyntheticCheckpoint::int8();
    checkpoint.set<uint16_t>(kUp + ".weight_scale", 5, static_cast<uint16_t>(bits));
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_TRUE(weights.w13.expert(0).ok());
    expect_bad(weights.w13.expert(1), {"model.safetensors", "tensor '" + kUp + ".weight_scale'",
                                       str("needs finite numbers; element [5, 0] is ", shown)});
  }
}

TEST(CompressedTensors, NamesMissingTensor) {
  for (const char* part : {".weight", ".weight_scale"}) {
    expect_missing(SyntheticCheckpoint::int8(), kUp + part);
  }
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.remove(kUp + ".weight");
  checkpoint.remove(kUp + ".weight_scale");
  expect_bad(checkpoint.experts(),
             {"module '" + kUp + "'", kUp + ".weight or " + kUp + ".{weight,weight_scale}",
              "the file has no such tensor"});
}

TEST(CompressedTensors, NamesTensorOfWrongTypeOrShape) {
  const WrongTensor tensors[] = {
      {".weight", DType::kU8, {16, 32}, "needs i8 of two dimensions; it is u8 [16, 32]"},
      {".weight", DType::kBF16, {16, 32}, "needs i8 of two dimensions; it is bf16 [16, 32]"},
      {".weight", DType::kI8, {512}, "needs i8 of two dimensions; it is i8 [512]"},
      {".weight_scale", DType::kI8, {16, 1}, "needs f32, f16 or bf16; it is i8 [16, 1]"},
      {".weight_scale", DType::kF64, {16, 1}, "needs f32, f16 or bf16; it is f64 [16, 1]"},
      {".weight_scale",
       DType::kBF16,
       {1},
       "needs shape [16, 1], one scale per channel; it is bf16 [1]"},
      {".weight_scale",
       DType::kBF16,
       {1, 16},
       "needs shape [16, 1], one scale per channel; it is bf16 [1, 16]"},
      {".weight_scale",
       DType::kBF16,
       {16, 2},
       "needs shape [16, 1], one scale per channel; it is bf16 [16, 2]"},
  };
  for (const WrongTensor& tensor : tensors) {
    expect_named(SyntheticCheckpoint::int8(), kGate, tensor);
  }
}

TEST(CompressedTensors, RejectsOtherFormatByName) {
  for (const char* format : {"dense", "marlin-24", "mixed-precision"}) {
    expect_unsupported_config(SyntheticCheckpoint::int8(),
                              {{{"format", format}},
                               str("format: needs one of int-quantized, pack-quantized, "
                                   "float-quantized, mxfp8-quantized, mxfp4-pack-quantized, "
                                   "nvfp4-pack-quantized, naive-quantized; it is ",
                                   format)});
  }
}

TEST(CompressedTensors, RejectsOtherSchemeByKey) {
  struct Change {
    const char* operand;
    const char* key;
    json value;
    const char* line;
  };
  const Change changes[] = {
      {"weights", "num_bits", 2, "needs 4 or 8; it is 2"},
      {"weights", "num_bits", nullptr, "needs 4 or 8; it is missing"},
      {"weights", "type", "float", "needs \"int\"; it is \"float\""},
      {"weights", "strategy", "block",
       "needs \"channel\" or \"group\" or \"tensor\"; it is \"block\""},
      {"weights", "symmetric", 1, "needs true or false; it is 1"},
      {"weights", "dynamic", true, "needs false; it is true"},
      {"input_activations", "num_bits", 4, "needs 8; it is 4"},
      {"input_activations", "type", "other", "needs \"int\" or \"float\"; it is \"other\""},
      {"input_activations", "strategy", "group", "needs \"token\" or \"tensor\"; it is \"group\""},
      {"input_activations", "symmetric", false, "needs true; it is false"},
      {"input_activations", "dynamic", false, "needs true; it is false"},
      {"input_activations", "dynamic", "local", "needs true; it is \"local\""},
  };
  for (const Change& change : changes) {
    auto checkpoint = SyntheticCheckpoint::int8();
    checkpoint.quantization()["config_groups"]["group_0"][change.operand][change.key] =
        change.value;
    expect_unsupported(checkpoint.open(), {kConfig + str("config_groups.group_0.", change.operand,
                                                         ".", change.key, ": ", change.line)});
  }
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.quantization()["config_groups"]["group_0"]["weights"] = nullptr;
  expect_unsupported(checkpoint.open(),
                     {kConfig + "config_groups.group_0.weights: needs ", "it is missing"});
}

TEST(CompressedTensors, RejectsInvalidConfigGroups) {
  auto checkpoint = SyntheticCheckpoint::int8();
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = groups["group_0"];
  expect_bad(checkpoint.open(), {"config_groups.group_1: needs targets that no other group has",
                                 "'Linear' is also a target of group_0"});
  groups = json::object();
  expect_unsupported(checkpoint.open(), {"config_groups: needs at least one group; it has 0"});
  groups = nullptr;
  expect_unsupported(checkpoint.open(), {"config_groups: needs at least one group; it has 0"});
  groups = {{"group_0", 3}};
  expect_bad(checkpoint.open(), {"config_groups.group_0: needs an object; it is 3"});
  groups = json::array({1});
  expect_bad(checkpoint.open(), {"config_groups: needs an object; it is [1]"});
  groups = {{std::string("a\0b", 3), nullptr}};
  expect_bad(checkpoint.open(), {"config_groups.a", "needs an object; it is null"});
}

TEST(CompressedTensors, RejectsUnknownKeysThatChangeValues) {
  const json some = {{"num_bits", 8}};
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.quantization()["transform_config"] = some;
  expect_unsupported(checkpoint.open(),
                     {"quantization_config.transform_config: needs to be absent or empty; it is "
                      "{\"num_bits\":8}"});
  checkpoint.quantization()["transform_config"] = json::object();
  EXPECT_TRUE(checkpoint.open().ok());
  checkpoint.quantization()["config_groups"]["group_0"]["output_activations"] = some;
  expect_unsupported(checkpoint.open(),
                     {"config_groups.group_0.output_activations: needs to be absent or empty"});
}

// Stores layer 0's output projection unquantized.
SyntheticCheckpoint with_plain_o_proj() {
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.remove(kAttention + "o_proj.weight_scale");
  checkpoint.add_floats(kAttention + "o_proj.weight", {32, 32});
  return checkpoint;
}

TEST(CompressedTensors, IgnoreDecidesOnlyBesideFloats) {
  const std::string module = kAttention + "o_proj";
  for (const std::string& pattern : {module, std::string("re:.*self_attn.o_proj$")}) {
    auto checkpoint = with_plain_o_proj();
    checkpoint.quantization()["ignore"].push_back(pattern);
    EXPECT_EQ(name(must(must(checkpoint.open()).linear({module})).scheme()), "bf16");

    auto quantized = SyntheticCheckpoint::int8();
    quantized.quantization()["ignore"].push_back(pattern);
    EXPECT_EQ(scheme_of(quantized, module), "int8-w8a8");
    EXPECT_EQ(scheme_of(with_floats(quantized, module), module), "bf16");
  }
}

TEST(CompressedTensors, StoredTensorsDecideForModulesListedAsQuantized) {
  const Checkpoint opened = must(with_plain_o_proj().open());
  EXPECT_FALSE(must(opened.linear({kAttention + "o_proj"})).scheme().weight.quantized());
}

TEST(CompressedTensors, QuantizedModuleOutsideTargetsNeedsTheOnlyGroup) {
  for (const char* target : {"re:.*mlp\\.experts\\..*", "re:.*_proj$"}) {
    auto checkpoint = SyntheticCheckpoint::int8();
    checkpoint.quantization()["config_groups"]["group_0"]["targets"] = {target};
    EXPECT_TRUE(checkpoint.experts().ok());
  }
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.quantization()["config_groups"]["group_0"]["targets"] = {"re:.*self_attn"};
  EXPECT_EQ(name(must(checkpoint.experts()).spec.scheme), "int8-w8a8");
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_1"]["targets"] = {"re:.*lm_head"};
  expect_bad(checkpoint.experts(), {"needs to match a target of one of the config's groups"});
}

TEST(CompressedTensors, NamesInvalidPattern) {
  auto checkpoint = SyntheticCheckpoint::int8();
  checkpoint.quantization()["ignore"] = {"re:("};
  expect_bad(checkpoint.open(),
             {"/config.json: module pattern 're:(': needs a regular expression"});
  checkpoint = SyntheticCheckpoint::int8();
  checkpoint.quantization()["config_groups"]["group_0"]["targets"] = {"re:["};
  expect_bad(checkpoint.open(),
             {"/config.json: module pattern 're:[': needs a regular expression"});
  checkpoint.quantization()["config_groups"]["group_0"]["targets"] = "Linear";
  expect_bad(checkpoint.open(), {"config_groups.group_0.targets: needs an array of strings"});
}

}  // namespace
}  // namespace moracle::testing::compressed_tensors_test
