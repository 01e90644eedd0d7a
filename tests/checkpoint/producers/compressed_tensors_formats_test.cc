// Compares the formats of compressed-tensors with the published formulas, element by element.
#include <limits>

#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"
#include "ct_synthetic.h"

namespace moracle::testing::compressed_tensors_formats_test {
namespace {

using nlohmann::json;

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
  // Quantized activations with integer weights, packed or one byte each, as llm-compressor writes
  // W4A8.
  for (const char* format : {"pack-quantized", "int-quantized"}) {
    for (const char* type : {"int", "float"}) {
      for (const int bits : {4, 8}) {
        CtModule m{.format = format, .bits = bits, .activations = "token", .activation_type = type};
        const std::string widths =
            str("int", bits, "-w", bits, type == std::string("int") ? "a8" : "afp8");
        m.scheme = widths + "-g8";
        all.push_back(m);
        m.symmetric = false;
        m.scheme = widths + "-g8-asym";
        all.push_back(m);
        m.strategy = "channel";
        m.scheme = widths + "-channel-asym";
        all.push_back(m);
      }
    }
  }
  all.push_back({.format = "pack-quantized",
                 .bits = 8,
                 .strategy = "channel",
                 .activations = "token",
                 .scheme = "int8-w8a8"});
  for (const int bits : {4, 8}) {
    const std::string widths = str("int", bits, "-w", bits, "a16-g5");
    all.push_back({.format = "int-quantized", .bits = bits, .group_size = 5, .scheme = widths});
    all.push_back({.format = "int-quantized",
                   .bits = bits,
                   .group_size = 5,
                   .symmetric = false,
                   .actorder = "group",
                   .scheme = widths + "-asym"});
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
  add("int-quantized", "channel", "tensor", "int8-w8a8-channel-static");
  add("int-quantized", "tensor", "tensor", "int8-w8a8-channel-static");
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

class CompressedTensorsFormats : public ::testing::TestWithParam<CtModule> {};

TEST_P(CompressedTensorsFormats, DequantizeToPublishedValues) {
  const CtModule& format = GetParam();
  const auto checkpoint = ct_checkpoint(format);
  const Checkpoint opened = must(checkpoint.open());
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme), format.scheme);
  EXPECT_EQ(weights.spec.group_index, format.act_order(32));
  const Value value = published(checkpoint, format);
  expect_values(weights, 1, value);
  const CanonicalMatrix w2 = must(weights.w2.expert(1));
  EXPECT_EQ(w2.zero_points.empty(), format.symmetric);
  EXPECT_EQ(w2.group_index.empty(), !format.act_order(w2.k));
  expect_values(must(opened.linear(kQkv)), 0, kQkv, value);
  EXPECT_TRUE(opened.linear({kAttention + "o_proj"}).ok());
  for (const std::string& left : opened.unclaimed()) {
    EXPECT_EQ(left.find("_proj"), left.npos) << left << " is not claimed by any module";
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompressedTensorsFormats, ::testing::ValuesIn(all_formats()),
                         [](const auto& instance) { return str(instance.param); });

// compressed-tensors stores -1 everywhere in an unused group index.
TEST(CompressedTensorsFormat, OrderedGroupIndexIsNotActOrder) {
  for (const bool unused : {false, true}) {
    for (const char* format : {"pack-quantized", "int-quantized"}) {
      const CtModule module{.format = format, .actorder = "group"};
      auto checkpoint = ct_checkpoint(module);
      for (auto& [name, tensor] : checkpoint.tensors) {
        if (!name.ends_with(".weight_g_idx")) continue;
        for (size_t i = 0; i < tensor.bytes.size() / 4; ++i)
          checkpoint.set(name, i, unused ? -1 : static_cast<int32_t>(i / 8));
      }
      const DescribedWeights weights = must(checkpoint.experts());
      EXPECT_FALSE(weights.spec.group_index) << format;
      EXPECT_TRUE(must(weights.w13.expert(1)).group_index.empty()) << format;
      const CtModule plain{.format = format};
      expect_values(weights, 1, published(checkpoint, plain));
      checkpoint.set<int32_t>(kDown + ".weight_g_idx", 3, -1);
      if (unused) continue;
      expect_bad(must(checkpoint.experts()).w2.expert(1),
                 {kDown + ".weight_g_idx", "needs groups from 0 to 1; element 3 is -1"});
    }
  }
}

// compressed-tensors names weight-only fp8 "naive-quantized", too.
TEST(CompressedTensorsFormat, NaiveFormatFollowsWeightType) {
  for (const CtModule& module : {ct_fp8("channel", ""), ct_int8("channel", "")}) {
    auto checkpoint = ct_checkpoint(module);
    checkpoint.quantization()["format"] = "naive-quantized";
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_EQ(weights.spec.scheme.weight.dtype, module.is_float() ? DType::kF8E4M3 : DType::kI8);
    expect_values(weights, 1, published(checkpoint, module));
  }
}

TEST(CompressedTensorsFormat, NamesCodeOrZeroPointOutsideItsBits) {
  const CtModule module{.format = "int-quantized", .symmetric = false, .activations = "token"};
  for (const int code : {8, -9}) {
    auto checkpoint = ct_checkpoint(module);
    checkpoint.set<int8_t>(kGate + ".weight", 2 * 32 + 5, static_cast<int8_t>(code));
    expect_bad(must(checkpoint.experts()).w13.expert(1),
               {"model.safetensors", "tensor '" + kGate + ".weight'",
                str("needs codes from -8 to 7, because num_bits is 4; element [2, 5] is ", code)});
    checkpoint = ct_checkpoint(module);
    checkpoint.set<int8_t>(kGate + ".weight_zero_point", 6, static_cast<int8_t>(code));
    expect_bad(must(checkpoint.experts()).w13.expert(1),
               {"tensor '" + kGate + ".weight_zero_point'",
                str("needs zero points from -8 to 7; element 6 is ", code)});
  }
}

TEST(CompressedTensorsFormat, RepeatsTensorScaleForEveryRow) {
  const DescribedWeights weights = must(ct_checkpoint(ct_fp8("tensor", "token")).experts());
  EXPECT_EQ(weights.w13.scheme().weight, kFp8StaticTensorSym);
  EXPECT_EQ(weights.w13.shape().key, kFp8StaticChannelSym);
  const std::vector<float> scales = must(weights.w13.expert(0)).scales;
  ASSERT_EQ(scales.size(), 26u);
  EXPECT_EQ(scales[0], scales[12]);
  EXPECT_NE(scales[12], scales[13]);  // gate's and up's
  EXPECT_EQ(scales[13], scales[25]);
}

TEST(CompressedTensorsFormat, ExpandsBlocksThatSpanStackedMatrices) {
  const DescribedWeights weights = must(ct_checkpoint(ct_fp8("block", "group")).experts());
  EXPECT_EQ(weights.w13.shape().key.group, (GroupShape{1, 16}));  // 13 rows end inside a block
  EXPECT_EQ(weights.w2.shape().key.group, (GroupShape{8, 16}));
  EXPECT_EQ(weights.spec.scheme.activation, fp8_dynamic_group(16));
}

TEST(CompressedTensorsFormat, StaticActivationsUseLargestScaleOfStack) {
  auto checkpoint = ct_checkpoint(ct_fp8("tensor", "tensor"));
  checkpoint.set<float>(kGate + ".input_scale", 0, 0.25f);
  checkpoint.set<float>(kUp + ".input_scale", 0, 0.5f);
  checkpoint.set(SyntheticCheckpoint::expert(0, 0, "gate_proj.input_scale"), 0, 0.75f);
  checkpoint.set(SyntheticCheckpoint::expert(0, 0, "up_proj.input_scale"), 0, 0.25f);
  checkpoint.add(kDown + ".input_scale", DType::kBF16, {}, std::vector<uint16_t>{0x3e00});
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_EQ(weights.spec.scheme.activation, kFp8StaticTensorSym);
  ASSERT_EQ(weights.w13.input_scales().size(), 2u);
  EXPECT_EQ(weights.w13.input_scales()[0], 0.75f);
  EXPECT_EQ(weights.w13.input_scales()[1], 0.5f);
  EXPECT_EQ(weights.w2.input_scales()[1], 0.125f);
}

TEST(CompressedTensorsFormat, NamesInvalidActivationScale) {
  const std::string name = kUp + ".input_scale";
  for (const auto& [value, fact] :
       {std::pair{0.0f, "it is 0"}, {-1.0f, "it is -1"}, {std::nanf(""), "element 0 is nan"}}) {
    auto checkpoint = ct_checkpoint(ct_fp8("tensor", "tensor"));
    checkpoint.set<float>(name, 0, value);
    expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + name + "'", fact});
  }
  auto checkpoint = ct_checkpoint(ct_fp8("tensor", "tensor"));
  checkpoint.reshape(name, {2});
  expect_bad(checkpoint.experts(), {"tensor '" + name + "'", "it has 2 elements"});
  expect_missing(checkpoint, name);
}

TEST(CompressedTensorsFormat, AcceptsI32Shape) {
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.add(kDown + ".weight_shape", DType::kI32, {2}, std::vector<int32_t>{32, 13});
  expect_values(must(checkpoint.experts()).w2, 1, {kDown}, published(checkpoint, ct_packed()));
}

TEST(CompressedTensorsFormat, NamesShapeThatDoesNotFitPackedWords) {
  const std::vector<std::pair<std::vector<int64_t>, const char*>> cases = {
      {{31, 13}, "it is [31, 13]"},
      {{32, 8}, "it is [32, 8]"},
      {{32, 17}, "it is [32, 17]"},
      {{32, -13}, "it is [32, -13]"},
      {{13, 32}, "it is [13, 32]"},
      {{32, std::numeric_limits<int64_t>::max()}, "it is [32, 9223372036854775807]"},
  };
  for (const auto& [values, fact] : cases) {
    auto checkpoint = ct_checkpoint(ct_packed());
    checkpoint.add(kDown + ".weight_shape", DType::kI64, {2}, values);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kDown + ".weight_shape'",
                "needs [32, 9 to 16], because weight_packed is i32 [32, 2]", fact});
  }
}

TEST(CompressedTensorsFormat, PaddingBitsOfLastByteAreZero) {
  const DescribedWeights weights = must(ct_checkpoint(ct_packed()).experts());
  const CanonicalMatrix w2 = must(weights.w2.expert(1));  // 13 nibbles in 7 bytes
  for (int64_t r = 0; r < 32; ++r) EXPECT_EQ(static_cast<int>(w2.codes[7 * r + 6]) >> 4, 0);
}

TEST(CompressedTensorsFormat, UnpacksZeroPointsOfRowsInOneWord) {
  auto checkpoint = ct_checkpoint(ct_asymmetric());
  // Rows 8 to 12 of 13 are in the second word. The bits after them belong to no row.
  for (uint32_t g = 0; g < 4; ++g) {
    checkpoint.set<uint32_t>(kGate + ".weight_zero_point", g, 0x76543210u);
    checkpoint.set<uint32_t>(kGate + ".weight_zero_point", 4 + g, 0xeeecba98u + g);
  }
  const DescribedWeights weights = must(checkpoint.experts());
  const CanonicalMatrix w13 = must(weights.w13.expert(1));
  for (int g = 0; g < 4; ++g) {
    for (int r = 0; r < 13; ++r) {
      EXPECT_EQ(w13.zero_points[r * 4 + g], r - 8 + (r == 8 ? g : 0)) << r << " " << g;
    }
  }
  expect_values(weights.w13, 1, {kGate, kUp}, published(checkpoint, ct_asymmetric()));
}

TEST(CompressedTensorsFormat, NamesUnsetGroupIndex) {
  for (const int32_t group : {-1, 4, std::numeric_limits<int32_t>::min()}) {
    auto checkpoint = ct_checkpoint(ct_act_order());
    checkpoint.set<int32_t>(kGate + ".weight_g_idx", 9, group);
    checkpoint.set<int32_t>(kUp + ".weight_g_idx", 9, group);
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_TRUE(weights.w13.expert(0).ok());
    expect_bad(weights.w13.expert(1), {"model.safetensors", "tensor '" + kGate + ".weight_g_idx'",
                                       "needs groups from 0 to 3", str("element 9 is ", group)});
  }
}

TEST(CompressedTensorsFormat, RejectsGateAndUpOfDifferentColumnOrder) {
  auto checkpoint = ct_checkpoint(ct_act_order());
  checkpoint.set<int32_t>(kUp + ".weight_g_idx", 0, 3);
  expect_unsupported(checkpoint.experts(), {"model.safetensors", "module '" + kUp + "'",
                                            "needs columns in the same groups"});
}

TEST(CompressedTensorsFormat, NamesTensorThatConfigDoesNotExpect) {
  auto checkpoint = ct_checkpoint(ct_act_order());
  json& weights = checkpoint.quantization()["config_groups"]["group_0"]["weights"];
  weights["actorder"] = "static";
  expect_bad(checkpoint.experts(),
             {"gate_proj.weight_g_idx'",
              "needs to be absent, because actorder is not group; it is i32 [32]"});
  checkpoint = ct_checkpoint(ct_asymmetric());
  checkpoint.quantization()["config_groups"]["group_0"]["weights"]["symmetric"] = true;
  expect_bad(checkpoint.experts(),
             {"gate_proj.weight_zero_point'",
              "needs to be absent, because symmetric is true; it is i32 [2, 4]"});
  for (const CtModule& format : {ct_int8("channel", "token"), ct_fp8("channel", "token")}) {
    checkpoint = ct_checkpoint(format);
    checkpoint.add(kUp + ".weight_zero_point", DType::kI8, {13, 1}, std::vector<int8_t>(13));
    expect_bad(checkpoint.experts(), {"tensor '" + kUp + ".weight_zero_point'",
                                      "needs to be absent, because symmetric is true"});
  }
}

TEST(CompressedTensorsFormat, NamesMissingTensor) {
  struct Case {
    CtModule format;
    const char* part;
  };
  const Case cases[] = {
      {ct_packed(), ".weight_packed"},         {ct_packed(), ".weight_scale"},
      {ct_packed(), ".weight_shape"},          {ct_asymmetric(), ".weight_zero_point"},
      {ct_act_order(), ".weight_g_idx"},       {ct_fp8("block", "group"), ".weight"},
      {ct_fp8("tensor", ""), ".weight_scale"}, {ct_int8("tensor", ""), ".weight_scale"},
  };
  for (const Case& c : cases) expect_missing(ct_checkpoint(c.format), kUp + c.part);
  auto checkpoint = ct_checkpoint(ct_packed());
  for (const char* part : {"packed", "scale", "shape"}) {
    checkpoint.remove(kUp + ".weight_" + part);
  }
  expect_bad(checkpoint.experts(),
             {"module '" + kUp + "'",
              kUp + ".weight or " + kUp + ".{weight_packed,weight_scale,weight_shape}"});
}

TEST(CompressedTensorsFormat, NamesTensorOfWrongTypeOrShape) {
  struct Case {
    CtModule format;
    WrongTensor tensor;
  };
  const Case cases[] = {
      {ct_packed(),
       {".weight_packed", DType::kI8, {13, 4}, "needs i32 [N, K/8]; it is i8 [13, 4]"}},
      {ct_packed(),
       {".weight_packed", DType::kI64, {13, 4}, "needs i32 [N, K/8]; it is i64 [13, 4]"}},
      {ct_packed(), {".weight_packed", DType::kI32, {52}, "needs i32 [N, K/8]; it is i32 [52]"}},
      {ct_packed(), {".weight_shape", DType::kF32, {2}, "needs i64 [2]; it is f32 [2]"}},
      {ct_packed(), {".weight_shape", DType::kI64, {3}, "needs i64 [2]; it is i64 [3]"}},
      {ct_packed(),
       {".weight_scale", DType::kI8, {13, 4}, "needs f32, f16 or bf16; it is i8 [13, 4]"}},
      {ct_packed(),
       {".weight_scale",
        DType::kBF16,
        {13, 2},
        "needs shape [13, 4], groups of 8; it is bf16 [13, 2]"}},
      {ct_packed(),
       {".weight_scale",
        DType::kBF16,
        {4, 13},
        "needs shape [13, 4], groups of 8; it is bf16 [4, 13]"}},
      {{.strategy = "channel"},
       {".weight_scale",
        DType::kBF16,
        {1},
        "needs shape [13, 1], one scale per channel; it is bf16 [1]"}},
      {ct_asymmetric(),
       {".weight_zero_point", DType::kI8, {13, 4}, "needs i32 [2, 4]; it is i8 [13, 4]"}},
      {ct_asymmetric(),
       {".weight_zero_point", DType::kI32, {13, 1}, "needs i32 [2, 4]; it is i32 [13, 1]"}},
      {ct_asymmetric(),
       {".weight_zero_point", DType::kI32, {1, 4}, "needs i32 [2, 4]; it is i32 [1, 4]"}},
      {ct_act_order(), {".weight_g_idx", DType::kI64, {32}, "needs i32 [32]; it is i64 [32]"}},
      {ct_act_order(), {".weight_g_idx", DType::kI32, {31}, "needs i32 [32]; it is i32 [31]"}},
      {ct_fp8("channel", ""),
       {".weight", DType::kF8E5M2, {13, 32}, "needs f8_e4m3 [N, K]; it is f8_e5m2 [13, 32]"}},
      {ct_fp8("channel", ""),
       {".weight", DType::kI8, {13, 32}, "needs f8_e4m3 [N, K]; it is i8 [13, 32]"}},
      {ct_fp8("channel", ""),
       {".weight_scale", DType::kU8, {13, 1}, "needs f32, f16 or bf16; it is u8 [13, 1]"}},
      {ct_fp8("channel", ""), {".weight_scale", DType::kBF16, {1}, "it is bf16 [1]"}},
      {ct_fp8("tensor", ""), {".weight_scale", DType::kBF16, {13, 1}, "it is bf16 [13, 1]"}},
      {ct_fp8("block", ""), {".weight_scale", DType::kBF16, {1, 2}, "it is bf16 [1, 2]"}},
      {ct_int8("channel", ""),
       {".weight", DType::kF8E4M3, {13, 32}, "needs i8 of two dimensions; it is f8_e4m3 [13, 32]"}},
      {ct_int8("tensor", ""),
       {".weight_scale",
        DType::kBF16,
        {13, 1},
        "needs shape [1], one scale for the tensor; it is bf16 [13, 1]"}},
      {ct_int8("channel", ""),
       {".weight_scale",
        DType::kBF16,
        {1},
        "needs shape [13, 1], one scale per channel; it is bf16 [1]"}},
  };
  for (const Case& c : cases) expect_named(ct_checkpoint(c.format), kGate, c.tensor);
}

TEST(CompressedTensorsFormat, NamesNonFiniteScale) {
  for (const CtModule& format :
       {ct_packed(), ct_int8("tensor", ""), ct_fp8("tensor", ""), ct_fp8("block", "group")}) {
    auto checkpoint = ct_checkpoint(format);
    checkpoint.set<uint16_t>(kUp + ".weight_scale", 0, 0x7fc0);
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_TRUE(weights.w13.expert(0).ok());
    expect_bad(weights.w13.expert(1), {"model.safetensors", "tensor '" + kUp + ".weight_scale'",
                                       "needs finite numbers; element ", "0", " is nan"});
  }
}

TEST(CompressedTensorsFormat, KeepsBias) {
  for (const CtModule& format :
       {ct_packed(), ct_int8("channel", "token"), ct_fp8("block", "group")}) {
    auto checkpoint = ct_checkpoint(format);
    checkpoint.add_floats(kAttention + "o_proj.bias", {32});
    const DescribedMatrix o = must(must(checkpoint.open()).linear({kAttention + "o_proj"}));
    const std::vector<float> bias = must(o.expert(0)).bias;
    ASSERT_EQ(bias.size(), 32u);
    EXPECT_EQ(bias[31], bf16_to_float(checkpoint.get<uint16_t>(kAttention + "o_proj.bias", 31)));
  }
}

// Groups.

TEST(CompressedTensorsGroups, BestMatchingTargetDecidesScheme) {
  auto checkpoint = ct_checkpoint(ct_packed());
  const CtModule attention = ct_fp8("channel", "token"), output = ct_int8("channel", "token");
  CtWriter writer(checkpoint);
  for (const auto& [part, rows] : {std::pair{"q_proj", 32}, {"k_proj", 16}, {"v_proj", 16}}) {
    for (const char* old : {"packed", "shape"})
      checkpoint.remove(kAttention + part + ".weight_" + old);
    writer.add(kAttention + part, rows, 32, attention);
  }
  for (const char* old : {"packed", "shape"})
    checkpoint.remove(kAttention + "o_proj.weight_" + old);
  writer.add(kAttention + "o_proj", 32, 32, output);
  // The file lists the class first and an exact name last; the more specific target applies.
  json& quantization = checkpoint.quantization();
  quantization["format"] = "mixed-precision";
  quantization["config_groups"] = {{"group_0", ct_group(ct_packed(), {"Linear"})},
                                   {"group_1", ct_group(attention, {"re:.*self_attn.*"})},
                                   {"group_10", ct_group(output, {kAttention + "o_proj"})}};
  quantization["config_groups"]["group_0"]["format"] = "pack-quantized";
  quantization["config_groups"]["group_1"]["format"] = "float-quantized";
  quantization["config_groups"]["group_10"]["format"] = "int-quantized";
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), "int4-w4a16-g8");
  const DescribedMatrix fused = must(opened.linear(kQkv));
  EXPECT_EQ(name(fused.scheme()), "fp8-w8a8-channel");
  expect_values(fused, 0, kQkv, published(checkpoint, attention));
  EXPECT_EQ(name(must(opened.linear({kAttention + "o_proj"})).scheme()), "int8-w8a8");

  quantization["ignore"].push_back(kAttention + "o_proj");
  EXPECT_EQ(scheme_of(checkpoint, kAttention + "o_proj"), "int8-w8a8");
}

TEST(CompressedTensorsGroups, WidensIntegersOfOneStack) {
  auto checkpoint = ct_checkpoint(ct_packed());
  const CtModule other{.group_size = 16};
  CtWriter(checkpoint).add(kAttention + "v_proj", 16, 32, other);
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = ct_group(other, {"re:.*v_proj"});
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(scheme_of(checkpoint, kAttention + "v_proj"), "int4-w4a16-g16");
  const DescribedMatrix stack = must(opened.linear({kAttention + "k_proj", kAttention + "v_proj"}));
  EXPECT_EQ(name(stack.scheme()), "int4-w4a16-g8");
  expect_values(stack, 0, {kAttention + "k_proj", kAttention + "v_proj"},
                [&](const std::string& module, int64_t n, int64_t k) {
                  return published(checkpoint, module.ends_with("v_proj") ? other : ct_packed())(
                      module, n, k);
                });
}

TEST(CompressedTensorsGroups, RejectsStackWithoutCommonScheme) {
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.remove(kAttention + "v_proj.weight_packed");
  checkpoint.remove(kAttention + "v_proj.weight_scale");
  const Checkpoint opened = must(with_floats(checkpoint, kAttention + "v_proj", {16, 32}).open());
  expect_bad(opened.linear({kAttention + "k_proj", kAttention + "v_proj"}),
             {kAttention + "v_proj", "needs the same scheme and input size as",
              "int4-w4a16-g8 [16, 32], because both read the same input; it is bf16 [16, 32]"});
}

TEST(CompressedTensorsGroups, NamesTensorInFormatOfOtherGroup) {
  auto checkpoint = ct_checkpoint(ct_packed());
  checkpoint.quantization()["config_groups"]["group_1"] =
      ct_group(ct_fp8("channel", "token"), {"re:.*v_proj"});
  checkpoint.quantization()["config_groups"]["group_1"]["format"] = "float-quantized";
  expect_bad(must(checkpoint.open()).linear({kAttention + "v_proj"}),
             {"tensor '" + kAttention + "v_proj.weight'", "it is missing"});
}

TEST(CompressedTensorsGroups, RejectsTargetInTwoGroups) {
  auto checkpoint = ct_checkpoint(ct_packed());
  json& groups = checkpoint.quantization()["config_groups"];
  groups["group_1"] = groups["group_0"];
  expect_bad(checkpoint.open(), {kConfig + "config_groups.group_1: needs targets that no other "
                                           "group has; 'Linear' is also a target of group_0"});
  groups.erase("group_1");
  groups["group_0"]["targets"] = {"Linear", "Linear"};
  EXPECT_TRUE(checkpoint.experts().ok());
  for (const json& none : {json(nullptr), json::object()}) {
    groups = none;
    expect_unsupported(checkpoint.open(),
                       {kConfig + "config_groups: needs at least one group; it has 0"});
  }
}

// Reads files of llm-compressor.

TEST(CompressedTensorsFile, ReadsW4A16) {
  expect_stored("qwen3moe-ct-w4a16-g128", "compressed-tensors", "int4-w4a16-g128");
}
TEST(CompressedTensorsFile, ReadsW8A8) {
  expect_stored("qwen3moe-ct-w8a8-int8", "compressed-tensors", "int8-w8a8");
}
TEST(CompressedTensorsFile, ReadsFp8Dynamic) {
  expect_stored("qwen3moe-ct-fp8-dynamic", "compressed-tensors", "fp8-w8a8-channel");
}
TEST(CompressedTensorsFile, ReadsFp8Block) {
  expect_stored("qwen3moe-ct-fp8-block", "compressed-tensors", "fp8-w8a8-block128x128");
}

}  // namespace
}  // namespace moracle::testing::compressed_tensors_formats_test
