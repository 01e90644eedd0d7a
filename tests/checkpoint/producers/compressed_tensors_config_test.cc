// Tests that unsupported compressed-tensors configs are rejected by key.
#include "checkpoint/reader_fixture.h"
#include "ct_synthetic.h"

namespace moracle::testing::compressed_tensors_config_test {
namespace {

using nlohmann::json;

TEST(CompressedTensorsConfig, RejectsUnsupportedFormat) {
  for (const char* format : {"dense", "marlin-24", "sparse-24-bitmask", "mixed-precision"}) {
    const std::string line =
        str("format: needs one of int-quantized, pack-quantized, "
            "float-quantized, mxfp8-quantized, mxfp4-pack-quantized, nvfp4-pack-quantized, "
            "naive-quantized; it is ",
            format);
    expect_unsupported_config(ct_checkpoint(ct_packed()), {{{"format", format}}, line});
    auto checkpoint = ct_checkpoint(ct_packed());
    checkpoint.quantization()["config_groups"]["group_0"]["format"] = format;
    expect_unsupported(checkpoint.open(), {kConfig + "config_groups.group_0." + line});
  }
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization().erase("format");
  expect_bad(checkpoint.open(), {kConfig + "format: needs a string; it is missing"});
}

TEST(CompressedTensorsConfig, RejectsUncompressedWeights) {
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization()["quantization_status"] = "frozen";
  ASSERT_TRUE(checkpoint.experts().ok());  // the tensors decide
  const std::string module = SyntheticCheckpoint::expert(0, 0, "gate_proj");
  checkpoint.remove(module + ".weight_packed");
  checkpoint.add_floats(module + ".weight", {16, 32});
  expect_unsupported(checkpoint.experts(),
                     {"tensor '" + module + ".weight'",
                      "needs compressed weights; save the model with save_compressed=True; it is "
                      "bf16 [16, 32] beside weight_scale: floats that are rounded at run time "
                      "(quantization_status frozen)"});
}

TEST(CompressedTensorsConfig, RejectsFormatThatContradictsItsGroup) {
  const std::string type = "config_groups.group_0.weights.type: ";
  expect_unsupported_config(ct_checkpoint(ct_packed()), {{{"format", "float-quantized"}},
                                                         type + "needs \"float\"; it is \"int\""});
  expect_unsupported_config(
      ct_checkpoint(ct_fp8("channel", "token")),
      {{{"format", "int-quantized"}}, type + "needs \"int\"; it is \"float\""});
}

struct Refused {
  CtModule format;
  const char* operand;
  json change;
  const char* line;
};

// int8 activations with one key changed, in a group that has no activations.
json w4a8(const json& change) {
  json activations = {{"num_bits", 8},
                      {"type", "int"},
                      {"strategy", "token"},
                      {"symmetric", true},
                      {"dynamic", true}};
  activations.update(change);
  return activations;
}

TEST(CompressedTensorsConfig, RejectsUnsupportedSchemeByKey) {
  const CtModule packed = ct_packed(), int8 = ct_int8("channel", "token");
  const CtModule block = ct_fp8("block", "group"), token = ct_fp8("channel", "token");
  const char* const inputs = "input_activations";
  const Refused cases[] = {
      {packed, "weights", {{"num_bits", 2}}, "num_bits: needs 4 or 8; it is 2"},
      {packed, "weights", {{"num_bits", 3}}, "num_bits: needs 4 or 8; it is 3"},
      {packed, "weights", {{"num_bits", 5}}, "num_bits: needs 4 or 8; it is 5"},
      {packed, "weights", {{"num_bits", 6}}, "num_bits: needs 4 or 8; it is 6"},
      {packed, "weights", {{"num_bits", 7}}, "num_bits: needs 4 or 8; it is 7"},
      {packed, "weights", {{"num_bits", nullptr}}, "num_bits: needs 4 or 8; it is missing"},
      {packed,
       "weights",
       {{"strategy", "tensor"}},
       "strategy: needs \"channel\" or \"group\"; it is \"tensor\""},
      {packed, "weights", {{"strategy", "tensor_group"}}, "it is \"tensor_group\""},
      {packed, "weights", {{"dynamic", true}}, "dynamic: needs false; it is true"},
      {packed, "weights", {{"dynamic", "local"}}, "dynamic: needs false; it is \"local\""},
      {packed, "weights", {{"actorder", "other"}}, "actorder: needs \"weight\" or \"static\""},
      {packed, inputs, w4a8({{"num_bits", 4}}), "num_bits: needs 8; it is 4"},
      {packed, inputs, w4a8({{"strategy", "tensor"}}),
       "strategy: needs \"token\"; it is \"tensor\""},
      {packed, inputs, w4a8({{"dynamic", false}}), "dynamic: needs true; it is false"},
      {int8, "weights", {{"num_bits", 2}}, "num_bits: needs 4 or 8; it is 2"},
      {int8,
       "weights",
       {{"strategy", "block"}},
       "strategy: needs \"channel\" or \"group\" or \"tensor\"; it is \"block\""},
      {int8, inputs, {{"num_bits", 4}}, "num_bits: needs 8; it is 4"},
      {int8, inputs, {{"type", "other"}}, "type: needs \"int\" or \"float\"; it is \"other\""},
      {int8, inputs, {{"strategy", "tensor"}}, "dynamic: needs false; it is true"},
      {int8, inputs, {{"symmetric", false}}, "symmetric: needs true; it is false"},
      {int8, inputs, {{"dynamic", false}}, "dynamic: needs true; it is false"},
      {token, "weights", {{"num_bits", 4}}, "num_bits: needs 8; it is 4"},
      {token,
       "weights",
       {{"strategy", "group"}},
       "strategy: needs \"tensor\" or \"channel\" or \"block\"; it is \"group\""},
      {token, inputs, {{"type", "int"}}, "type: needs \"float\"; it is \"int\""},
      {token,
       inputs,
       {{"strategy", "group"}},
       "strategy: needs \"token\" or \"tensor\"; it is \"group\""},
      {token, inputs, {{"strategy", "tensor"}}, "dynamic: needs false; it is true"},
      {token, inputs, {{"dynamic", false}}, "dynamic: needs true; it is false"},
      {block, inputs, {{"strategy", "token"}}, "strategy: needs \"group\"; it is \"token\""},
      {block, inputs, {{"group_size", 32}}, "group_size: needs 16; it is 32"},
      {block, inputs, {{"dynamic", false}}, "dynamic: needs true; it is false"},
  };
  for (const Refused& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    json& operand = checkpoint.quantization()["config_groups"]["group_0"][c.operand];
    if (operand.is_null()) operand = json::object();
    operand.update(c.change);
    expect_unsupported(checkpoint.open(),
                       {kConfig + "config_groups.group_0." + c.operand + ".", c.line});
  }
}

TEST(CompressedTensorsConfig, RejectsInvalidValues) {
  const Refused cases[] = {
      {ct_packed(), "weights", {{"group_size", 0}}, "group_size: needs a whole number from 1"},
      {ct_packed(),
       "weights",
       {{"group_size", nullptr}},
       "group_size: needs a whole number from 1"},
      {ct_act_order(),
       "weights",
       {{"strategy", "channel"}},
       "actorder: needs the strategy group; the strategy is channel"},
      {ct_fp8("block", "group"),
       "weights",
       {{"block_structure", nullptr}},
       "block_structure: needs two positive sizes, of rows and columns; it is missing"},
      {ct_fp8("block", "group"), "weights", {{"block_structure", {0, 128}}}, "it is [0,128]"},
      {ct_fp8("block", "group"),
       "weights",
       {{"block_structure", {INT64_MAX, 16}}},
       "it is [9223372036854775807,16]"},
      {ct_fp8("block", "group"),
       "weights",
       {{"block_structure", {8, INT64_MAX}}},
       "it is [8,9223372036854775807]"},
      {ct_fp8("block", "group"), "weights", {{"block_structure", {128}}}, "it is [128]"},
  };
  for (const Refused& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    checkpoint.quantization()["config_groups"]["group_0"][c.operand].update(c.change);
    expect_bad(checkpoint.open(), {kConfig + "config_groups.group_0." + c.operand + ".", c.line});
  }
}

TEST(CompressedTensorsConfig, RejectsUnknownKeysThatChangeValues) {
  const json some = {{"num_bits", 8}};
  expect_unsupported_config(
      ct_checkpoint(ct_packed()),
      {{{"transform_config", some}},
       "transform_config: needs to be absent or empty; it is {\"num_bits\":8}"});
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization()["config_groups"]["group_0"]["output_activations"] = some;
  expect_unsupported(
      checkpoint.open(),
      {kConfig + "config_groups.group_0.output_activations: needs to be absent or empty"});
  checkpoint = ct_checkpoint({.format = "int-quantized", .bits = 8, .strategy = "tensor"});
  checkpoint.quantization()["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  expect_unsupported(checkpoint.open(), {"config_groups.group_0.weights: needs symmetric true "
                                         "with strategy tensor"});
  checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization()["config_groups"]["group_0"]["weights"] = nullptr;
  expect_unsupported(checkpoint.open(), {"config_groups.group_0.weights: needs a quantization of "
                                         "the weights; it is missing"});
}

TEST(CompressedTensorsConfig, RejectsSparseWeights) {
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization()["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  expect_unsupported(checkpoint.open(), {kConfig + "sparsity_config.format: needs \"dense\"; it is "
                                                   "\"sparse-24-bitmask\""});
  checkpoint.quantization()["sparsity_config"] = {{"format", "dense"}, {"global_sparsity", 0.1}};
  EXPECT_TRUE(checkpoint.experts().ok());
}

}  // namespace
}  // namespace moracle::testing::compressed_tensors_config_test
