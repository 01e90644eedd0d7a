// compressed-tensors' formats, against the published formulas applied element by element.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "ct_synthetic.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "read_stored.h"

namespace moracle {
namespace {

using nlohmann::json;
using testing::ct_checkpoint;
using testing::ct_group;
using testing::ct_value;
using testing::CtModule;
using testing::CtWriter;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");
const std::string kAttention = "model.layers.0.self_attn.";
const std::string kConfig = "/config.json: quantization_config.";

void expect_values(const SyntheticCheckpoint& checkpoint, const CtModule& format,
                   const CanonicalMatrix& matrix, const std::vector<std::string>& modules,
                   const std::vector<int64_t>& rows) {
  std::vector<double> row(matrix.k);
  int64_t first = 0;
  for (size_t i = 0; i < modules.size(); ++i) {
    for (int64_t n = 0; n < rows[i]; ++n) {
      dequantize_row(matrix, first + n, row.data());
      for (int64_t k = 0; k < matrix.k; ++k) {
        ASSERT_EQ(row[k], ct_value(checkpoint, modules[i], format, n, k))
            << modules[i] << " row " << n << " column " << k;
      }
    }
    first += rows[i];
  }
  EXPECT_EQ(first, matrix.n);
}

std::vector<CtModule> all_formats() {
  std::vector<CtModule> all;
  for (const int bits : {4, 8}) {
    for (const int64_t group : {8, 16, 5, 64, 0}) {
      for (const bool symmetric : {true, false}) {
        for (const char* order : {"", "static", "weight", "group"}) {
          CtModule m{.bits = bits, .group_size = group, .symmetric = symmetric};
          if (group == 0) m.strategy = "channel";
          if (*order != 0) m.actorder = order;
          if (group == 0 && m.actorder == "group") continue;
          m.scheme = str("int", bits, "-w", bits, "a16-", group ? str("g", group) : "channel",
                         symmetric ? "" : "-asym");
          all.push_back(m);
        }
      }
    }
  }
  auto add = [&](const char* format, const char* strategy, const char* activations,
                 const char* scheme) {
    all.push_back({.format = format,
                   .bits = 8,
                   .strategy = strategy,
                   .activations = activations,
                   .scheme = scheme});
  };
  add("int-quantized", "channel", "token", "int8-w8a8");
  add("int-quantized", "channel", "", "int8-w8a16-channel");
  add("int-quantized", "tensor", "token", "int8-w8a8");
  add("int-quantized", "tensor", "", "int8-w8a16-channel");
  add("float-quantized", "tensor", "token", "fp8-w8a8-tensor");
  add("float-quantized", "tensor", "tensor", "fp8-w8a8-tensor-static");
  add("float-quantized", "tensor", "", "fp8-w8a16-tensor");
  add("float-quantized", "channel", "token", "fp8-w8a8-channel");
  add("float-quantized", "channel", "tensor", "fp8-w8a8-channel-static");
  add("float-quantized", "channel", "", "fp8-w8a16-channel");
  add("float-quantized", "block", "group", "fp8-w8a8-block8x16");
  add("float-quantized", "block", "", "fp8-w8a16-block8x16");
  all.push_back(all.back());
  all.back().block_rows = all.back().block_cols = 128;
  all.back().scheme = "fp8-w8a16-block128x128";
  return all;
}

class CtFormats : public ::testing::TestWithParam<CtModule> {};

TEST_P(CtFormats, GiveThePublishedValues) {
  const CtModule& format = GetParam();
  const auto checkpoint = ct_checkpoint(format);
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  const auto weights = opened->moe_layer(0);
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(name(weights->spec.scheme), format.scheme);
  EXPECT_EQ(weights->spec.group_index, format.actorder == "group");
  const auto w13 = weights->w13.expert(1), w2 = weights->w2.expert(1);
  ASSERT_TRUE(w13.ok() && w2.ok()) << (w13.ok() ? w2 : w13).error().to_string();
  expect_values(checkpoint, format, *w13, {kGate, kUp}, {13, 13});
  expect_values(checkpoint, format, *w2, {kDown}, {32});
  EXPECT_EQ(w2->zero_points.empty(), format.symmetric);
  EXPECT_EQ(w2->group_index.empty(), format.actorder != "group");
  const std::vector<std::string> qkv = {kAttention + "q_proj", kAttention + "k_proj",
                                        kAttention + "v_proj"};
  const auto attention = opened->linear(qkv);
  ASSERT_TRUE(attention.ok()) << attention.error().to_string();
  expect_values(checkpoint, format, *attention->expert(0), qkv, {32, 16, 16});
  ASSERT_TRUE(opened->linear({kAttention + "o_proj"}).ok());
  for (const std::string& left : opened->unclaimed()) {
    EXPECT_EQ(left.find("_proj"), left.npos) << left << " is read by nobody";
  }
}

INSTANTIATE_TEST_SUITE_P(All, CtFormats, ::testing::ValuesIn(all_formats()),
                         [](const auto& instance) { return str(instance.param); });

CtModule packed() {
  return {};
}
CtModule asymmetric() {
  return {.symmetric = false};
}
CtModule act_order() {
  return {.actorder = "group"};
}
CtModule fp8(const char* strategy, const char* activations) {
  return {.format = "float-quantized", .bits = 8, .strategy = strategy, .activations = activations};
}
CtModule int8(const char* strategy, const char* activations) {
  return {.format = "int-quantized", .bits = 8, .strategy = strategy, .activations = activations};
}

TEST(CtFormat, ATensorsScaleIsRepeatedForEveryRow) {
  const auto weights = ct_checkpoint(fp8("tensor", "token")).experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(weights->w13.scheme().weight, kFp8StaticTensorSym);
  EXPECT_EQ(weights->w13.shape().key, kFp8StaticChannelSym);
  const auto w13 = weights->w13.expert(0);
  ASSERT_EQ(w13->scales.size(), 26u);
  EXPECT_EQ(w13->scales[0], w13->scales[12]);
  EXPECT_NE(w13->scales[12], w13->scales[13]);  // gate's and up's
  EXPECT_EQ(w13->scales[13], w13->scales[25]);
}

TEST(CtFormat, BlocksThatMatricesShareInAStackAreExpanded) {
  const auto weights = ct_checkpoint(fp8("block", "group")).experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(weights->w13.shape().key.group, (GroupShape{1, 16}));  // 13 rows end inside a block
  EXPECT_EQ(weights->w2.shape().key.group, (GroupShape{8, 16}));
  EXPECT_EQ(weights->spec.scheme.activation, fp8_dynamic_group(16));
}

TEST(CtFormat, StaticActivationsTakeTheLargestScaleOfTheStack) {
  auto checkpoint = ct_checkpoint(fp8("tensor", "tensor"));
  checkpoint.set<float>(kGate + ".input_scale", 0, 0.25f);
  checkpoint.set<float>(kUp + ".input_scale", 0, 0.5f);
  checkpoint.add(kDown + ".input_scale", DType::kBF16, {}, std::vector<uint16_t>{0x3e00});
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  EXPECT_EQ(weights->spec.scheme.activation, kFp8StaticTensorSym);
  ASSERT_EQ(weights->w13.input_scales().size(), 2u);
  EXPECT_EQ(weights->w13.input_scales()[1], 0.5f);
  EXPECT_EQ(weights->w2.input_scales()[1], 0.125f);
}

TEST(CtFormat, AnActivationScaleThatIsNoneIsNamed) {
  const std::string name = kUp + ".input_scale";
  for (const auto& [value, fact] :
       {std::pair{0.0f, "it is 0"}, {-1.0f, "it is -1"}, {std::nanf(""), "element 0 is nan"}}) {
    auto checkpoint = ct_checkpoint(fp8("tensor", "tensor"));
    checkpoint.set<float>(name, 0, value);
    expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + name + "'", fact});
  }
  auto checkpoint = ct_checkpoint(fp8("tensor", "tensor"));
  checkpoint.reshape(name, {2});
  expect_bad(checkpoint.experts(), {"tensor '" + name + "'", "it has 2 elements"});
  checkpoint.remove(name);
  expect_bad(checkpoint.experts(), {"tensor '" + name + "'", "it is missing"});
}

TEST(CtFormat, TheShapeMayBeI32) {
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.add(kDown + ".weight_shape", DType::kI32, {2}, std::vector<int32_t>{32, 13});
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  expect_values(checkpoint, packed(), *weights->w2.expert(1), {kDown}, {32});
}

TEST(CtFormat, AShapeThatDoesNotFitItsWordsIsNamed) {
  const std::vector<std::pair<std::vector<int64_t>, const char*>> cases = {
      {{31, 13}, "it says [31, 13]"},
      {{32, 8}, "it says [32, 8]"},
      {{32, 17}, "it says [32, 17]"},
      {{32, -13}, "it says [32, -13]"},
      {{13, 32}, "it says [13, 32]"},
      {{32, std::numeric_limits<int64_t>::max()}, "it says [32, 9223372036854775807]"},
  };
  for (const auto& [values, fact] : cases) {
    auto checkpoint = ct_checkpoint(packed());
    checkpoint.add(kDown + ".weight_shape", DType::kI64, {2}, values);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kDown + ".weight_shape'",
                "needs [32, 9 to 16], since weight_packed is i32 [32, 2]", fact});
  }
}

TEST(CtFormat, TheRestOfTheLastByteIsZero) {
  const auto weights = ct_checkpoint(packed()).experts();
  const auto w2 = weights->w2.expert(1);  // 13 nibbles in 7 bytes
  for (int64_t r = 0; r < 32; ++r) EXPECT_EQ(static_cast<int>(w2->codes[7 * r + 6]) >> 4, 0);
}

TEST(CtFormat, ZeroPointsOfRowsThatShareAWordAreTheirOwn) {
  auto checkpoint = ct_checkpoint(asymmetric());
  // Rows 8 to 12 of 13 lie in the second word; what follows them belongs to no row.
  for (uint32_t g = 0; g < 4; ++g) {
    checkpoint.set<uint32_t>(kGate + ".weight_zero_point", g, 0x76543210u);
    checkpoint.set<uint32_t>(kGate + ".weight_zero_point", 4 + g, 0xeeecba98u + g);
  }
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const auto w13 = weights->w13.expert(1);
  for (int g = 0; g < 4; ++g) {
    for (int r = 0; r < 13; ++r) {
      EXPECT_EQ(w13->zero_points[r * 4 + g], r - 8 + (r == 8 ? g : 0)) << r << " " << g;
    }
  }
  expect_values(checkpoint, asymmetric(), *w13, {kGate, kUp}, {13, 13});
}

TEST(CtFormat, AGroupIndexThatIsNotSetIsNamed) {
  for (const int32_t group : {-1, 4, std::numeric_limits<int32_t>::min()}) {
    auto checkpoint = ct_checkpoint(act_order());
    checkpoint.set<int32_t>(kGate + ".weight_g_idx", 9, group);
    checkpoint.set<int32_t>(kUp + ".weight_g_idx", 9, group);
    const auto weights = checkpoint.experts();
    ASSERT_TRUE(weights.ok()) << weights.error().to_string();
    EXPECT_TRUE(weights->w13.expert(0).ok());
    expect_bad(weights->w13.expert(1), {"model.safetensors", "tensor '" + kGate + ".weight_g_idx'",
                                        "needs groups from 0 to 3", str("element 9 is ", group)});
  }
}

TEST(CtFormat, GateAndUpNeedOneOrderOfColumns) {
  auto checkpoint = ct_checkpoint(act_order());
  checkpoint.set<int32_t>(kUp + ".weight_g_idx", 0, 3);
  expect_unsupported(checkpoint.experts(), {"model.safetensors", "module '" + kUp + "'",
                                            "needs columns in the same groups"});
}

TEST(CtFormat, ATensorThatTheConfigDoesNotExpectIsNamed) {
  auto checkpoint = ct_checkpoint(act_order());
  json& weights = checkpoint.quantization()["config_groups"]["group_0"]["weights"];
  weights["actorder"] = "static";
  expect_bad(checkpoint.experts(),
             {"gate_proj.weight_g_idx'",
              "needs to be absent, since actorder is not group; it is i32 [32]"});
  checkpoint = ct_checkpoint(asymmetric());
  checkpoint.quantization()["config_groups"]["group_0"]["weights"]["symmetric"] = true;
  expect_bad(checkpoint.experts(),
             {"gate_proj.weight_zero_point'",
              "needs to be absent, since symmetric is true; it is i32 [2, 4]"});
  for (const CtModule& format : {int8("channel", "token"), fp8("channel", "token")}) {
    checkpoint = ct_checkpoint(format);
    checkpoint.add(kUp + ".weight_zero_point", DType::kI8, {13, 1}, std::vector<int8_t>(13));
    expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".weight_zero_point'",
                                      "needs to be absent, since symmetric is true"});
  }
}

TEST(CtFormat, AMissingTensorIsNamed) {
  struct Case {
    CtModule format;
    const char* part;
  };
  const Case cases[] = {
      {packed(), ".weight_packed"},         {packed(), ".weight_scale"},
      {packed(), ".weight_shape"},          {asymmetric(), ".weight_zero_point"},
      {act_order(), ".weight_g_idx"},       {fp8("block", "group"), ".weight"},
      {fp8("tensor", ""), ".weight_scale"}, {int8("tensor", ""), ".weight_scale"},
  };
  for (const Case& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    checkpoint.remove(kUp + c.part);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kUp + c.part + "'", "it is missing"});
  }
  auto checkpoint = ct_checkpoint(packed());
  for (const char* part : {"packed", "scale", "shape"}) {
    checkpoint.remove(kUp + ".weight_" + part);
  }
  expect_bad(checkpoint.experts(),
             {"module '" + kUp + "'",
              kUp + ".weight or " + kUp + ".{weight_packed,weight_scale,weight_shape}"});
}

TEST(CtFormat, ATensorOfAnotherTypeOrShapeIsNamed) {
  struct Case {
    CtModule format;
    const char* part;
    DType dtype;
    std::vector<int64_t> shape;
    const char* line;
  };
  const Case cases[] = {
      {packed(), ".weight_packed", DType::kI8, {13, 4}, "needs i32 [N, K/8]; it is i8 [13, 4]"},
      {packed(), ".weight_packed", DType::kI64, {13, 4}, "needs i32 [N, K/8]; it is i64 [13, 4]"},
      {packed(), ".weight_packed", DType::kI32, {52}, "needs i32 [N, K/8]; it is i32 [52]"},
      {packed(), ".weight_shape", DType::kF32, {2}, "needs i64 [2]; it is f32 [2]"},
      {packed(), ".weight_shape", DType::kI64, {3}, "needs i64 [2]; it is i64 [3]"},
      {packed(), ".weight_scale", DType::kI8, {13, 4}, "needs f32, f16 or bf16; it is i8 [13, 4]"},
      {packed(),
       ".weight_scale",
       DType::kBF16,
       {13, 2},
       "needs shape [13, 4], groups of 8; it is bf16 [13, 2]"},
      {packed(),
       ".weight_scale",
       DType::kBF16,
       {4, 13},
       "needs shape [13, 4], groups of 8; it is bf16 [4, 13]"},
      {{.strategy = "channel"},
       ".weight_scale",
       DType::kBF16,
       {1},
       "needs shape [13, 1], one scale per channel; it is bf16 [1]"},
      {asymmetric(),
       ".weight_zero_point",
       DType::kI8,
       {13, 4},
       "needs i32 [2, 4]; it is i8 [13, 4]"},
      {asymmetric(),
       ".weight_zero_point",
       DType::kI32,
       {13, 1},
       "needs i32 [2, 4]; it is i32 [13, 1]"},
      {asymmetric(),
       ".weight_zero_point",
       DType::kI32,
       {1, 4},
       "needs i32 [2, 4]; it is i32 [1, 4]"},
      {act_order(), ".weight_g_idx", DType::kI64, {32}, "needs i32 [32]; it is i64 [32]"},
      {act_order(), ".weight_g_idx", DType::kI32, {31}, "needs i32 [32]; it is i32 [31]"},
      {fp8("channel", ""),
       ".weight",
       DType::kF8E5M2,
       {13, 32},
       "needs f8_e4m3 [N, K]; it is f8_e5m2 [13, 32]"},
      {fp8("channel", ""),
       ".weight",
       DType::kI8,
       {13, 32},
       "needs f8_e4m3 [N, K]; it is i8 [13, 32]"},
      {fp8("channel", ""),
       ".weight_scale",
       DType::kU8,
       {13, 1},
       "needs f32, f16 or bf16; it is u8 [13, 1]"},
      {fp8("channel", ""), ".weight_scale", DType::kBF16, {1}, "it is bf16 [1]"},
      {fp8("tensor", ""), ".weight_scale", DType::kBF16, {13, 1}, "it is bf16 [13, 1]"},
      {fp8("block", ""), ".weight_scale", DType::kBF16, {1, 2}, "it is bf16 [1, 2]"},
      {int8("channel", ""),
       ".weight",
       DType::kF8E4M3,
       {13, 32},
       "needs i8 of two dimensions; it is f8_e4m3 [13, 32]"},
      {int8("tensor", ""),
       ".weight_scale",
       DType::kBF16,
       {13, 1},
       "needs shape [1], one scale for the tensor; it is bf16 [13, 1]"},
      {int8("channel", ""),
       ".weight_scale",
       DType::kBF16,
       {1},
       "needs shape [13, 1], one scale per channel; it is bf16 [1]"},
  };
  for (const Case& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    checkpoint.retype(kGate + c.part, c.dtype);
    checkpoint.reshape(kGate + c.part, c.shape);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kGate + c.part + "'", c.line});
  }
}

TEST(CtFormat, AScaleThatIsNoNumberIsNamed) {
  for (const CtModule& format :
       {packed(), int8("tensor", ""), fp8("tensor", ""), fp8("block", "group")}) {
    auto checkpoint = ct_checkpoint(format);
    checkpoint.set<uint16_t>(kUp + ".weight_scale", 0, 0x7fc0);
    const auto weights = checkpoint.experts();
    ASSERT_TRUE(weights.ok()) << weights.error().to_string();
    EXPECT_TRUE(weights->w13.expert(0).ok());
    expect_bad(weights->w13.expert(1), {"model.safetensors", "tensor '" + kUp + ".weight_scale'",
                                        "needs finite numbers; element 0 is nan"});
  }
}

TEST(CtFormat, ABiasComesAlong) {
  for (const CtModule& format : {packed(), int8("channel", "token"), fp8("block", "group")}) {
    auto checkpoint = ct_checkpoint(format);
    checkpoint.add_floats(kAttention + "o_proj.bias", {32});
    const auto o = checkpoint.open()->linear({kAttention + "o_proj"});
    ASSERT_TRUE(o.ok()) << o.error().to_string();
    const auto matrix = o->expert(0);
    ASSERT_EQ(matrix->bias.size(), 32u);
    EXPECT_EQ(matrix->bias[31],
              bf16_to_float(checkpoint.get<uint16_t>(kAttention + "o_proj.bias", 31)));
  }
}

// Groups.

TEST(CtGroups, EachModuleHasTheSchemeOfTheTargetThatMatchesItBest) {
  auto checkpoint = ct_checkpoint(packed());
  const CtModule attention = fp8("channel", "token"), output = int8("channel", "token");
  CtWriter writer(checkpoint);
  for (const auto& [part, rows] : {std::pair{"q_proj", 32}, {"k_proj", 16}, {"v_proj", 16}}) {
    for (const char* old : {"packed", "shape"})
      checkpoint.remove(kAttention + part + ".weight_" + old);
    writer.add(kAttention + part, rows, 32, attention);
  }
  for (const char* old : {"packed", "shape"})
    checkpoint.remove(kAttention + "o_proj.weight_" + old);
  writer.add(kAttention + "o_proj", 32, 32, output);
  // The class comes first and an exact name last, but the nearer one counts.
  json& quantization = checkpoint.quantization();
  quantization["format"] = "mixed-precision";
  quantization["config_groups"] = {{"group_0", ct_group(packed(), {"Linear"})},
                                   {"group_1", ct_group(attention, {"re:.*self_attn.*"})},
                                   {"group_10", ct_group(output, {kAttention + "o_proj"})}};
  quantization["config_groups"]["group_0"]["format"] = "pack-quantized";
  quantization["config_groups"]["group_1"]["format"] = "float-quantized";
  quantization["config_groups"]["group_10"]["format"] = "int-quantized";
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(name(opened->moe_layer(0)->spec.scheme), "int4-w4a16-g8");
  const std::vector<std::string> qkv = {kAttention + "q_proj", kAttention + "k_proj",
                                        kAttention + "v_proj"};
  const auto fused = opened->linear(qkv);
  ASSERT_TRUE(fused.ok()) << fused.error().to_string();
  EXPECT_EQ(name(fused->scheme()), "fp8-w8a8-channel");
  expect_values(checkpoint, attention, *fused->expert(0), qkv, {32, 16, 16});
  const auto o = opened->linear({kAttention + "o_proj"});
  ASSERT_TRUE(o.ok()) << o.error().to_string();
  EXPECT_EQ(name(o->scheme()), "int8-w8a8");

  quantization["ignore"].push_back(kAttention + "o_proj");
  expect_bad(checkpoint.open()->linear({kAttention + "o_proj"}),
             {"module '" + kAttention + "o_proj'", "needs to be stored unquantized"});
}

TEST(CtGroups, AStackNeedsOneScheme) {
  auto checkpoint = ct_checkpoint(packed());
  const CtModule other{.group_size = 16};
  CtWriter(checkpoint).add(kAttention + "v_proj", 16, 32, other);
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = ct_group(other, {"re:.*v_proj"});
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_TRUE(opened->linear({kAttention + "v_proj"}).ok());
  expect_bad(opened->linear({kAttention + "k_proj", kAttention + "v_proj"}),
             {kAttention + "v_proj", "needs the same scheme and input size as",
              "int4-w4a16-g8 [16, 32]", "it is int4-w4a16-g16 [16, 32]"});
}

TEST(CtGroups, ATensorOfAnotherGroupsFormatIsNamed) {
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["config_groups"]["group_1"] =
      ct_group(fp8("channel", "token"), {"re:.*v_proj"});
  checkpoint.quantization()["config_groups"]["group_1"]["format"] = "float-quantized";
  expect_bad(checkpoint.open()->linear({kAttention + "v_proj"}),
             {"tensor '" + kAttention + "v_proj.weight'", "it is missing"});
}

TEST(CtGroups, ATargetBelongsToOneGroup) {
  auto checkpoint = ct_checkpoint(packed());
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = groups["group_0"];
  expect_bad(checkpoint.open(), {kConfig + "config_groups.group_1: needs targets that no other "
                                           "group has; 'Linear' is one of group_0"});
  groups.erase("group_1");
  groups["group_0"]["targets"] = {"Linear", "Linear"};
  EXPECT_TRUE(checkpoint.experts().ok());
  for (const json& none : {json(nullptr), json::object()}) {
    groups = none;
    expect_unsupported(checkpoint.open(),
                       {kConfig + "config_groups: needs at least one group; there are 0"});
  }
}

// What is refused.

TEST(CtRefused, AFormatThatIsNotRead) {
  for (const char* format :
       {"naive-quantized", "dense", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
        "mxfp8-quantized", "marlin-24", "sparse-24-bitmask", "mixed-precision"}) {
    const std::string line =
        str("format: needs one of int-quantized, pack-quantized, "
            "float-quantized; it is ",
            format);
    auto checkpoint = ct_checkpoint(packed());
    checkpoint.quantization()["format"] = format;
    expect_unsupported(checkpoint.open(), {kConfig + line});
    checkpoint = ct_checkpoint(packed());
    checkpoint.quantization()["config_groups"]["group_0"]["format"] = format;
    expect_unsupported(checkpoint.open(), {kConfig + "config_groups.group_0." + line});
  }
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.quantization().erase("format");
  expect_bad(checkpoint.open(), {kConfig + "format: needs a text; it is not there"});
}

TEST(CtRefused, AFormatThatContradictsItsGroup) {
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["format"] = "float-quantized";
  expect_unsupported(checkpoint.open(), {"weights.type: needs \"float\"; it is \"int\""});
  checkpoint = ct_checkpoint(fp8("channel", "token"));
  checkpoint.quantization()["format"] = "int-quantized";
  expect_unsupported(checkpoint.open(), {"weights.type: needs \"int\"; it is \"float\""});
}

struct Refused {
  CtModule format;
  const char* operand;
  json change;
  const char* line;
};

TEST(CtRefused, ASchemeByItsKey) {
  const json some = {{"num_bits", 8}};
  const CtModule block = fp8("block", "group"), token = fp8("channel", "token");
  const Refused cases[] = {
      {packed(), "weights", {{"num_bits", 2}}, "num_bits: needs 4 or 8; it is 2"},
      {packed(), "weights", {{"num_bits", 3}}, "num_bits: needs 4 or 8; it is 3"},
      {packed(), "weights", {{"num_bits", 5}}, "num_bits: needs 4 or 8; it is 5"},
      {packed(), "weights", {{"num_bits", 6}}, "num_bits: needs 4 or 8; it is 6"},
      {packed(), "weights", {{"num_bits", 7}}, "num_bits: needs 4 or 8; it is 7"},
      {packed(), "weights", {{"num_bits", nullptr}}, "num_bits: needs 4 or 8; it is not there"},
      {packed(),
       "weights",
       {{"strategy", "tensor"}},
       "strategy: needs \"channel\" or \"group\"; it is \"tensor\""},
      {packed(), "weights", {{"strategy", "tensor_group"}}, "it is \"tensor_group\""},
      {packed(), "weights", {{"dynamic", true}}, "dynamic: needs false; it is true"},
      {packed(), "weights", {{"dynamic", "local"}}, "dynamic: needs false; it is \"local\""},
      {packed(), "weights", {{"actorder", "other"}}, "actorder: needs \"weight\" or \"static\""},
      {int8("channel", "token"), "weights", {{"num_bits", 4}}, "num_bits: needs 8; it is 4"},
      {int8("channel", "token"),
       "weights",
       {{"symmetric", false}},
       "symmetric: needs true; it is false"},
      {int8("channel", "token"),
       "weights",
       {{"strategy", "group"}},
       "strategy: needs \"channel\" or \"tensor\"; it is \"group\""},
      {int8("channel", "token"),
       "input_activations",
       {{"num_bits", 4}},
       "num_bits: needs 8; it is 4"},
      {int8("channel", "token"),
       "input_activations",
       {{"type", "float"}},
       "type: needs \"int\"; it is \"float\""},
      {int8("channel", "token"),
       "input_activations",
       {{"strategy", "tensor"}},
       "strategy: needs \"token\"; it is \"tensor\""},
      {int8("channel", "token"),
       "input_activations",
       {{"symmetric", false}},
       "symmetric: needs true; it is false"},
      {int8("channel", "token"),
       "input_activations",
       {{"dynamic", false}},
       "dynamic: needs true; it is false"},
      {token, "weights", {{"num_bits", 4}}, "num_bits: needs 8; it is 4"},
      {token,
       "weights",
       {{"strategy", "group"}},
       "strategy: needs \"tensor\" or \"channel\" or \"block\"; it is \"group\""},
      {token, "input_activations", {{"type", "int"}}, "type: needs \"float\"; it is \"int\""},
      {token,
       "input_activations",
       {{"strategy", "group"}},
       "strategy: needs \"token\" or \"tensor\"; it is \"group\""},
      {token, "input_activations", {{"strategy", "tensor"}}, "dynamic: needs false; it is true"},
      {token, "input_activations", {{"dynamic", false}}, "dynamic: needs true; it is false"},
      {block,
       "input_activations",
       {{"strategy", "token"}},
       "strategy: needs \"group\"; it is \"token\""},
      {block, "input_activations", {{"group_size", 32}}, "group_size: needs 16; it is 32"},
      {block, "input_activations", {{"dynamic", false}}, "dynamic: needs true; it is false"},
  };
  for (const Refused& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    checkpoint.quantization()["config_groups"]["group_0"][c.operand].update(c.change);
    expect_unsupported(checkpoint.open(),
                       {kConfig + "config_groups.group_0." + c.operand + ".", c.line});
  }
}

TEST(CtRefused, AConfigThatMakesNoSense) {
  const Refused cases[] = {
      {packed(), "weights", {{"group_size", 0}}, "group_size: needs a whole number from 1"},
      {packed(), "weights", {{"group_size", nullptr}}, "group_size: needs a whole number from 1"},
      {act_order(),
       "weights",
       {{"strategy", "channel"}},
       "actorder: needs the strategy group; the strategy is channel"},
      {fp8("block", "group"),
       "weights",
       {{"block_structure", nullptr}},
       "block_structure: needs two positive sizes, of rows and columns; it is not there"},
      {fp8("block", "group"), "weights", {{"block_structure", {0, 128}}}, "it is [0,128]"},
      {fp8("block", "group"), "weights", {{"block_structure", {128}}}, "it is [128]"},
  };
  for (const Refused& c : cases) {
    auto checkpoint = ct_checkpoint(c.format);
    checkpoint.quantization()["config_groups"]["group_0"][c.operand].update(c.change);
    expect_bad(checkpoint.open(), {kConfig + "config_groups.group_0." + c.operand + ".", c.line});
  }
}

TEST(CtRefused, WhatWouldChangeTheNumbersUnread) {
  const json some = {{"num_bits", 8}};
  for (const char* key : {"kv_cache_scheme", "transform_config"}) {
    auto checkpoint = ct_checkpoint(packed());
    checkpoint.quantization()[key] = some;
    expect_unsupported(checkpoint.open(),
                       {kConfig + key + ": needs nothing; it is {\"num_bits\":8}"});
  }
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["config_groups"]["group_0"]["output_activations"] = some;
  expect_unsupported(checkpoint.open(),
                     {kConfig + "config_groups.group_0.output_activations: needs nothing"});
  // Activations beside packed weights: W4A8.
  checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["config_groups"]["group_0"]["input_activations"] = some;
  expect_unsupported(checkpoint.open(), {kConfig + "config_groups.group_0.input_activations: needs "
                                                   "nothing beside packed weights; it is "});
  checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["config_groups"]["group_0"]["weights"] = nullptr;
  expect_unsupported(checkpoint.open(), {"config_groups.group_0.weights: needs a quantization of "
                                         "the weights; it is not there"});
}

TEST(CtRefused, SparseWeights) {
  auto checkpoint = ct_checkpoint(packed());
  checkpoint.quantization()["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  expect_unsupported(checkpoint.open(), {kConfig + "sparsity_config.format: needs \"dense\"; it is "
                                                   "\"sparse-24-bitmask\""});
  checkpoint.quantization()["sparsity_config"] = {{"format", "dense"}, {"global_sparsity", 0.1}};
  EXPECT_TRUE(checkpoint.experts().ok());
}

// Files of llm-compressor.

TEST(CtStored, W4A16) {
  testing::expect_stored("qwen3moe-ct-w4a16-g128", "compressed-tensors", "int4-w4a16-g128");
}
TEST(CtStored, W8A8) {
  testing::expect_stored("qwen3moe-ct-w8a8-int8", "compressed-tensors", "int8-w8a8");
}
TEST(CtStored, Fp8Dynamic) {
  testing::expect_stored("qwen3moe-ct-fp8-dynamic", "compressed-tensors", "fp8-w8a8-channel");
}
TEST(CtStored, Fp8Block) {
  testing::expect_stored("qwen3moe-ct-fp8-block", "compressed-tensors", "fp8-w8a8-block128x128");
}

}  // namespace
}  // namespace moracle
