// GPTQ's reader, against the published formula applied element by element.
#include <limits>
#include <string>
#include <vector>

#include "base/scalar.h"
#include "base/text.h"
#include "expect_error.h"
#include "quant/codec.h"
#include "synthetic_checkpoint.h"

namespace moracle {
namespace {

using nlohmann::json;
using testing::expect_bad;
using testing::expect_unsupported;
using testing::SyntheticCheckpoint;
using testing::SyntheticGptq;

const std::string kGate = SyntheticCheckpoint::expert(0, 1, "gate_proj");
const std::string kUp = SyntheticCheckpoint::expert(0, 1, "up_proj");
const std::string kDown = SyntheticCheckpoint::expert(0, 1, "down_proj");

// value = (code - zero) · scale[g_idx[k]], where v1 stores zero - 1.
double published_value(const SyntheticCheckpoint& checkpoint, const std::string& module,
                       const SyntheticGptq& format, int64_t n, int64_t k) {
  const int64_t out = checkpoint.tensors.at(module + ".qweight").shape[1];
  const int64_t per_word = 32 / format.bits;
  const uint32_t mask = (1u << format.bits) - 1;
  const auto group = checkpoint.get<int32_t>(module + ".g_idx", k);
  const auto codes = checkpoint.get<uint32_t>(module + ".qweight", k / per_word * out + n);
  const auto zeros = checkpoint.get<uint32_t>(module + ".qzeros", (group * out + n) / per_word);
  const auto scale = checkpoint.get<uint16_t>(module + ".scales", group * out + n);
  const auto code = static_cast<int>(codes >> (k % per_word * format.bits) & mask);
  const auto stored_zero = static_cast<int>(zeros >> (n % per_word * format.bits) & mask);
  return (code - (stored_zero + (format.v2 ? 0 : 1))) * static_cast<double>(f16_to_float(scale));
}

void expect_published_values(const SyntheticCheckpoint& checkpoint, const SyntheticGptq& format,
                             const CanonicalMatrix& matrix,
                             const std::vector<std::string>& modules) {
  std::vector<double> row(matrix.k);
  const int64_t rows = matrix.n / static_cast<int64_t>(modules.size());
  for (int64_t n = 0; n < matrix.n; ++n) {
    dequantize_row(matrix, n, row.data());
    for (int64_t k = 0; k < matrix.k; ++k) {
      const double expected = published_value(checkpoint, modules[n / rows], format, n % rows, k);
      ASSERT_EQ(row[k], expected) << modules[n / rows] << " row " << n % rows << " column " << k;
    }
  }
}

std::vector<SyntheticGptq> all_formats() {
  std::vector<SyntheticGptq> formats;
  for (const int bits : {4, 8}) {
    for (const int64_t group : {8, 16, 24, 128, -1}) {
      for (const int choice : {0, 1, 2, 3, 4, 5, 6, 7}) {
        formats.push_back({bits, group, (choice & 1) == 0, (choice & 2) != 0, (choice & 4) != 0});
      }
    }
  }
  return formats;
}

class GptqFormats : public ::testing::TestWithParam<SyntheticGptq> {};

TEST_P(GptqFormats, GiveThePublishedValues) {
  const SyntheticGptq format = GetParam();
  const auto checkpoint = SyntheticCheckpoint::gptq(format);
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  for (int64_t e = 0; e < 4; ++e) {
    const auto w13 = weights->w13.expert(e);
    ASSERT_TRUE(w13.ok()) << w13.error().to_string();
    const auto w2 = weights->w2.expert(e);
    ASSERT_TRUE(w2.ok()) << w2.error().to_string();
    auto module = [&](const char* part) { return SyntheticCheckpoint::expert(0, e, part); };
    expect_published_values(checkpoint, format, *w13, {module("gate_proj"), module("up_proj")});
    expect_published_values(checkpoint, format, *w2, {module("down_proj")});
    EXPECT_EQ(w13->zero_points.empty(), format.symmetric);
    EXPECT_EQ(w13->group_index.empty(), !format.desc_act || format.group_size == -1);
  }
}

TEST_P(GptqFormats, AreNamedByTheirScheme) {
  const SyntheticGptq format = GetParam();
  const auto weights = SyntheticCheckpoint::gptq(format).experts();
  ASSERT_TRUE(weights.ok()) << weights.error().to_string();
  const std::string group = format.group_size == -1 ? "channel" : str("g", format.group_size);
  EXPECT_EQ(name(weights->spec.scheme), str("int", format.bits, "-w", format.bits, "a16-", group,
                                            format.symmetric ? "" : "-asym"));
  EXPECT_EQ(weights->spec.group_index, format.desc_act && format.group_size != -1);
  EXPECT_FALSE(weights->spec.bias);
}

INSTANTIATE_TEST_SUITE_P(All, GptqFormats, ::testing::ValuesIn(all_formats()),
                         [](const auto& instance) { return str(instance.param); });

TEST(Gptq, AZeroPointOfZeroWrapsAroundInVersion1) {
  for (const int bits : {4, 8}) {
    SyntheticGptq format{.bits = bits, .symmetric = false};
    auto checkpoint = SyntheticCheckpoint::gptq(format);
    for (size_t i = 0; i < checkpoint.at(kDown + ".qzeros").bytes.size() / 4; ++i) {
      checkpoint.set<uint32_t>(kDown + ".qzeros", i, 0xffffffffu);
    }
    const auto weights = checkpoint.experts();
    ASSERT_TRUE(weights.ok());
    const auto matrix = weights->w2.expert(1);
    ASSERT_TRUE(matrix.ok());
    EXPECT_EQ(matrix->zero_points.front(), -(1 << (bits - 1)));
    // The same zeros, as version 2 would store them.
    for (size_t i = 0; i < checkpoint.at(kDown + ".qzeros").bytes.size() / 4; ++i) {
      checkpoint.set<uint32_t>(kDown + ".qzeros", i, 0);
    }
    format.v2 = true;
    expect_published_values(checkpoint, format, *matrix, {kDown});
  }
}

TEST(Gptq, AZeroPointThatBreaksSymmetryIsNamed) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  // Group 2 of down is outside; of gate it is there: word 2 · 16 / 8 + 1 holds columns 8 to 15.
  checkpoint.set<uint32_t>(kGate + ".qzeros", 5, 0x77777577u);
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  EXPECT_TRUE(weights->w13.expert(0).ok());
  expect_bad(
      weights->w13.expert(1),
      {"model.safetensors", "tensor '" + kGate + ".qzeros'",
       "needs the zero point 8 everywhere, since the config says sym", "group 2, column 10 has 6"});
}

TEST(Gptq, AVersionThatTheConfigGetsWrongShowsInTheZeroPoints) {
  auto checkpoint = SyntheticCheckpoint::gptq({.v2 = true});
  checkpoint.quantization()["checkpoint_format"] = "gptq";
  expect_bad(checkpoint.experts()->w2.expert(0), {"qzeros", "group 0, column 0 has 9"});
}

TEST(Gptq, AScaleThatIsNoNumberIsNamed) {
  for (const auto& [bits, shown] : {std::pair{0x7e00, "nan"}, {0x7c00, "inf"}, {0xfc00, "-inf"}}) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.set<uint16_t>(kUp + ".scales", 21, static_cast<uint16_t>(bits));
    const auto weights = checkpoint.experts();
    ASSERT_TRUE(weights.ok());
    expect_bad(weights->w13.expert(1), {"model.safetensors", "tensor '" + kUp + ".scales'",
                                        "needs finite numbers", str("element 21 is ", shown)});
  }
}

TEST(Gptq, ScalesMayBeAnyFloat) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  std::vector<float> wide(32 * 2);
  std::vector<uint16_t> brain(32 * 2);
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = 0.25f * static_cast<float>(i);
    brain[i] = float_to_bf16(wide[i]);
  }
  checkpoint.add(kDown + ".scales", DType::kF32, {2, 32}, wide);
  EXPECT_EQ(checkpoint.experts()->w2.expert(1)->scales[2 * 3 + 1], 0.25f * (32 + 3));
  checkpoint.add(kDown + ".scales", DType::kBF16, {2, 32}, brain);
  EXPECT_EQ(checkpoint.experts()->w2.expert(1)->scales[2 * 3 + 1], 0.25f * (32 + 3));
}

TEST(Gptq, AGroupIndexOutsideTheGroupsIsNamed) {
  for (const bool desc_act : {false, true}) {
    for (const int32_t group : {4, -1, std::numeric_limits<int32_t>::min()}) {
      auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = desc_act});
      checkpoint.set<int32_t>(kGate + ".g_idx", 9, group);
      checkpoint.set<int32_t>(kUp + ".g_idx", 9, group);
      const auto weights = checkpoint.experts();
      ASSERT_TRUE(weights.ok()) << weights.error().to_string();
      expect_bad(weights->w13.expert(1), {"model.safetensors", "tensor '" + kGate + ".g_idx'",
                                          "needs groups from 0 to 3", str("element 9 is ", group)});
    }
  }
}

TEST(Gptq, AnOrderOfColumnsNeedsDescAct) {
  auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = true});
  checkpoint.quantization()["desc_act"] = false;
  const auto weights = checkpoint.experts();
  ASSERT_TRUE(weights.ok());
  expect_bad(weights->w13.expert(1),
             {"tensor '" + kGate + ".g_idx'",
              "needs groups from left to right, since desc_act is false", "element "});
}

TEST(Gptq, GateAndUpNeedOneOrderOfColumns) {
  auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = true});
  checkpoint.at(kUp + ".g_idx").bytes =
      checkpoint.at(SyntheticCheckpoint::expert(0, 2, "up_proj.g_idx")).bytes;
  expect_unsupported(checkpoint.experts(),
                     {"model.safetensors", "module '" + kUp + "'",
                      "needs columns in the same groups as '" + kGate + "'", "they are in others"});
}

TEST(Gptq, QueryKeyAndValueNeedOneOrderOfColumns) {
  auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = true});
  const std::string attention = "model.layers.0.self_attn.";
  checkpoint.at(attention + "v_proj.g_idx").bytes = checkpoint.at(attention + "o_proj.g_idx").bytes;
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->linear({attention + "q_proj", attention + "k_proj"}).ok());
  expect_unsupported(
      opened->linear({attention + "q_proj", attention + "k_proj", attention + "v_proj"}),
      {"module '" + attention + "v_proj'", "the same groups as '" + attention + "q_proj'"});
}

TEST(Gptq, AMissingTensorIsNamed) {
  for (const char* part : {".qzeros", ".scales"}) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.remove(kUp + part);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kUp + part + "'", "it is missing"});
  }
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.remove(kUp + ".qweight");
  expect_bad(checkpoint.experts(), {"model.safetensors", "module '" + kUp + "'",
                                    kUp + ".weight or " + kUp + ".{qweight,qzeros,scales,g_idx}",
                                    "the file has neither"});
}

TEST(Gptq, ATensorOfAnotherTypeOrShapeIsNamed) {
  struct Change {
    const char* part;
    DType dtype;
    std::vector<int64_t> shape;
    const char* need;
    const char* fact;
  };
  const Change changes[] = {
      {".qweight", DType::kI16, {4, 16}, "i32 [K/8, N]", "it is i16 [4, 16]"},
      {".qweight", DType::kI64, {4, 16}, "i32 [K/8, N]", "it is i64 [4, 16]"},
      {".qweight", DType::kI32, {64}, "i32 [K/8, N]", "it is i32 [64]"},
      {".qweight", DType::kI32, {4, 15}, "a multiple of 8", "it is i32 [4, 15]"},
      {".qweight", DType::kI32, {0, 16}, "i32 [0, 2]", "it is i32 [4, 2]"},
      {".qzeros", DType::kI16, {4, 2}, "i32 [4, 2]", "it is i16 [4, 2]"},
      {".qzeros", DType::kI32, {2, 4}, "i32 [4, 2]", "it is i32 [2, 4]"},
      {".scales", DType::kI16, {4, 16}, "f32, f16 or bf16", "it is i16 [4, 16]"},
      {".scales", DType::kF64, {4, 16}, "f32, f16 or bf16", "it is f64 [4, 16]"},
      {".scales", DType::kF16, {2, 16}, "shape [4, 16] (groups of 8)", "it is f16 [2, 16]"},
      {".g_idx", DType::kI64, {32}, "i32 [32]", "it is i64 [32]"},
      {".g_idx", DType::kI32, {31}, "i32 [32]", "it is i32 [31]"},
  };
  for (const Change& change : changes) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.retype(kGate + change.part, change.dtype);
    checkpoint.reshape(kGate + change.part, change.shape);
    expect_bad(checkpoint.experts(),
               {"model.safetensors", "tensor '" + kGate, change.need, change.fact});
  }
}

TEST(Gptq, TheGroupSizeOfTheConfigHasToBeThatOfTheFile) {
  auto checkpoint = SyntheticCheckpoint::gptq({.group_size = 8});
  checkpoint.quantization()["group_size"] = 16;
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [2, 2]; it is i32 [4, 2]"});
  checkpoint.quantization()["group_size"] = -1;
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [1, 2]; it is i32 [4, 2]"});
  checkpoint.quantization()["group_size"] = std::numeric_limits<int32_t>::max();
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [1, 2]; it is i32 [4, 2]"});
}

TEST(Gptq, TheConfigMayLieInAFileOfItsOwnThatNamesNoMethod) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  json quantization = checkpoint.quantization();
  quantization.erase("quant_method");
  checkpoint.config.erase("quantization_config");
  checkpoint.files["quantize_config.json"] = quantization.dump();
  const auto opened = checkpoint.open();
  ASSERT_TRUE(opened.ok()) << opened.error().to_string();
  EXPECT_EQ(opened->producer(), "gptq");
  EXPECT_EQ(name(opened->moe_layer(0)->spec.scheme), "int4-w4a16-g8");

  quantization["bits"] = 3;
  checkpoint.files["quantize_config.json"] = quantization.dump();
  expect_unsupported(checkpoint.open(), {"/quantize_config.json: bits: needs 4 or 8; it is 3"});
}

TEST(Gptq, AConfigThatMakesNoSenseNamesTheKey) {
  const std::pair<json, const char*> cases[] = {
      {{{"bits", nullptr}}, "bits: needs a whole number from 2 to 8; it is not there"},
      {{{"bits", 16}}, "bits: needs a whole number from 2 to 8; it is 16"},
      {{{"bits", "4"}}, "bits: needs a whole number from 2 to 8; it is \"4\""},
      {{{"group_size", 0}}, "group_size: needs -1 or a positive size; it is 0"},
      {{{"group_size", -2}}, "group_size: needs a whole number from -1"},
      {{{"group_size", 1e10}}, "group_size: needs a whole number from -1"},
      {{{"sym", "yes"}}, "sym: needs true or false; it is \"yes\""},
      {{{"desc_act", 1}}, "desc_act: needs true or false; it is 1"},
      {{{"checkpoint_format", 2}}, "checkpoint_format or format: needs a text; it is 2"},
      {{{"modules_in_block_to_quantize", {{1}}}},
       "modules_in_block_to_quantize: needs lists of module names; it holds 1"},
      {{{"modules_in_block_to_quantize", 1}},
       "modules_in_block_to_quantize: needs lists of module names; it holds 1"},
  };
  for (const auto& [change, line] : cases) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.quantization().update(change);
    expect_bad(checkpoint.open(), {str("/config.json: quantization_config.", line)});
  }
}

TEST(Gptq, AVariantThatIsNotReadIsRefusedByName) {
  const std::pair<json, const char*> cases[] = {
      {{{"bits", 3}}, "bits: needs 4 or 8; it is 3"},
      {{{"bits", 2}}, "bits: needs 4 or 8; it is 2"},
      {{{"checkpoint_format", "marlin"}},
       "checkpoint_format or format: needs gptq or gptq_v2; it is marlin"},
  };
  for (const auto& [change, line] : cases) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.quantization().update(change);
    expect_unsupported(checkpoint.open(), {str("/config.json: quantization_config.", line)});
  }
}

TEST(Gptq, AModuleThatIsNotListedIsNotQuantized) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  std::vector<std::string> listed;
  for (int e = 0; e < 4; ++e) {
    for (const char* part : {"gate_proj", "up_proj"})
      listed.push_back(str("mlp.experts.", e, ".", part));
  }
  checkpoint.quantization()["modules_in_block_to_quantize"] = json::array({listed});
  expect_bad(checkpoint.experts(),
             {"module '" + SyntheticCheckpoint::expert(0, 0, "down_proj") + "'",
              "needs to be stored unquantized, since the quantization config leaves it out",
              "the file holds it quantized"});
  for (int e = 0; e < 4; ++e) listed.push_back(str("mlp.experts.", e, ".down_proj"));
  checkpoint.quantization()["modules_in_block_to_quantize"] = listed;
  EXPECT_TRUE(checkpoint.experts().ok());
}

}  // namespace
}  // namespace moracle
