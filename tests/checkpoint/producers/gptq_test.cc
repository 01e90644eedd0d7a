// Compares the GPTQ reader with the published formula, element by element.
#include <limits>

#include "checkpoint/reader_fixture.h"

namespace moracle::testing::gptq_test {
namespace {

using nlohmann::json;

// value = (code - zero) · scale[g_idx[k]], where v1 stores zero - 1.
Value published(const SyntheticCheckpoint& checkpoint, const SyntheticGptq& format) {
  return [&checkpoint, format](const std::string& module, int64_t n, int64_t k) {
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
  };
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

// True if act-order can change the groups: the format has it and more than one group.
bool has_order(const SyntheticGptq& format, int64_t k) {
  return format.desc_act && format.group_size != -1 && format.group_size < k;
}

class GptqFormats : public ::testing::TestWithParam<SyntheticGptq> {};

TEST_P(GptqFormats, DequantizeToPublishedValues) {
  const SyntheticGptq format = GetParam();
  const auto checkpoint = SyntheticCheckpoint::gptq(format);
  const DescribedWeights weights = must(checkpoint.experts());
  for (int64_t e = 0; e < 4; ++e) {
    expect_values(weights, e, published(checkpoint, format));
    const CanonicalMatrix w13 = must(weights.w13.expert(e));
    EXPECT_EQ(w13.zero_points.empty(), format.symmetric);
    EXPECT_EQ(w13.group_index.empty(), !has_order(format, w13.k));
  }
}

TEST_P(GptqFormats, HaveExpectedSchemeName) {
  const SyntheticGptq format = GetParam();
  const LayerSpec spec = must(SyntheticCheckpoint::gptq(format).experts()).spec;
  const std::string group = format.group_size == -1 ? "channel" : str("g", format.group_size);
  EXPECT_EQ(name(spec.scheme), str("int", format.bits, "-w", format.bits, "a16-", group,
                                   format.symmetric ? "" : "-asym"));
  EXPECT_EQ(spec.group_index, has_order(format, 32));
  EXPECT_FALSE(spec.bias);
}

INSTANTIATE_TEST_SUITE_P(All, GptqFormats, ::testing::ValuesIn(all_formats()),
                         [](const auto& instance) { return str(instance.param); });

TEST(Gptq, ZeroPointOfZeroWrapsAroundInVersion1) {
  for (const int bits : {4, 8}) {
    SyntheticGptq format{.bits = bits, .symmetric = false};
    auto checkpoint = SyntheticCheckpoint::gptq(format);
    for (size_t i = 0; i < checkpoint.at(kDown + ".qzeros").bytes.size() / 4; ++i) {
      checkpoint.set<uint32_t>(kDown + ".qzeros", i, 0xffffffffu);
    }
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_EQ(must(weights.w2.expert(1)).zero_points.front(), -(1 << (bits - 1)));
    // The same zero points in the form of version 2.
    for (size_t i = 0; i < checkpoint.at(kDown + ".qzeros").bytes.size() / 4; ++i) {
      checkpoint.set<uint32_t>(kDown + ".qzeros", i, 0);
    }
    format.v2 = true;
    expect_values(weights.w2, 1, {kDown}, published(checkpoint, format));
  }
}

TEST(Gptq, NamesZeroPointThatBreaksSymmetry) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  // down has no group 2. gate has one: word 2 · 16 / 8 + 1 holds columns 8 to 15.
  checkpoint.set<uint32_t>(kGate + ".qzeros", 5, 0x77777577u);
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_TRUE(weights.w13.expert(0).ok());
  expect_bad(weights.w13.expert(1),
             {"model.safetensors", "tensor '" + kGate + ".qzeros'",
              "needs the zero point 8 everywhere, because the config says sym",
              "group 2, column 10 has 6"});
}

TEST(Gptq, DetectsWrongVersionByZeroPoints) {
  auto checkpoint = SyntheticCheckpoint::gptq({.v2 = true});
  checkpoint.quantization()["checkpoint_format"] = "gptq";
  expect_bad(must(checkpoint.experts()).w2.expert(0), {"qzeros", "group 0, column 0 has 9"});
}

TEST(Gptq, NamesNonFiniteScale) {
  for (const auto& [bits, shown] : {std::pair{0x7e00, "nan"}, {0x7c00, "inf"}, {0xfc00, "-inf"}}) {
    auto checkpoint = SyntheticCheckpoint::gptq();
    checkpoint.set<uint16_t>(kUp + ".scales", 21, static_cast<uint16_t>(bits));
    expect_bad(must(checkpoint.experts()).w13.expert(1),
               {"model.safetensors", "tensor '" + kUp + ".scales'", "needs finite numbers",
                str("element [1, 5] is ", shown)});
  }
}

TEST(Gptq, AcceptsAnyFloatScales) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  std::vector<float> wide(32 * 2);
  std::vector<uint16_t> brain(32 * 2);
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = 0.25f * static_cast<float>(i);
    brain[i] = float_to_bf16(wide[i]);
  }
  checkpoint.add(kDown + ".scales", DType::kF32, {2, 32}, wide);
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales[2 * 3 + 1], 0.25f * (32 + 3));
  checkpoint.add(kDown + ".scales", DType::kBF16, {2, 32}, brain);
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales[2 * 3 + 1], 0.25f * (32 + 3));
}

TEST(Gptq, NamesGroupIndexOutOfRange) {
  for (const bool desc_act : {false, true}) {
    for (const int32_t group : {4, -1, std::numeric_limits<int32_t>::min()}) {
      auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = desc_act});
      checkpoint.set<int32_t>(kGate + ".g_idx", 9, group);
      checkpoint.set<int32_t>(kUp + ".g_idx", 9, group);
      expect_bad(must(checkpoint.experts()).w13.expert(1),
                 {"model.safetensors", "tensor '" + kGate + ".g_idx'", "needs groups from 0 to 3",
                  str("element 9 is ", group)});
    }
  }
}

// Files with static groups or with reordered weights set desc_act, but their columns are in order.
TEST(Gptq, GroupIndexDecidesActOrderNotDescAct) {
  for (const bool shuffled : {false, true}) {
    for (const bool desc_act : {false, true}) {
      const SyntheticGptq format{.desc_act = shuffled};
      auto checkpoint = SyntheticCheckpoint::gptq(format);
      checkpoint.quantization()["desc_act"] = desc_act;
      const DescribedWeights weights = must(checkpoint.experts());
      EXPECT_EQ(weights.spec.group_index, shuffled);
      EXPECT_EQ(weights.w13.shape().group_index, shuffled);
      EXPECT_EQ(must(weights.w13.expert(1)).group_index.empty(), !shuffled);
      expect_values(weights, 1, published(checkpoint, format));
      EXPECT_EQ(must(must(checkpoint.open()).linear(kQkv)).shape().group_index, shuffled);
    }
  }
}

// Sets the group index of `module` from left to right, in groups of 8.
void put_in_order(SyntheticCheckpoint& checkpoint, const std::string& module) {
  const std::string name = module + ".g_idx";
  for (size_t i = 0; i < checkpoint.at(name).bytes.size() / 4; ++i)
    checkpoint.set(name, i, static_cast<int32_t>(i / 8));
}

TEST(Gptq, MixesExpertsWithAndWithoutActOrder) {
  const SyntheticGptq format{.desc_act = true};
  auto checkpoint = SyntheticCheckpoint::gptq(format);
  // Any expert may be the one that differs.
  for (const int64_t ordered : {0, 2}) {
    for (const char* part : {"gate_proj", "up_proj", "down_proj"})
      put_in_order(checkpoint, SyntheticCheckpoint::expert(0, ordered, part));
    const DescribedWeights weights = must(checkpoint.experts());
    EXPECT_TRUE(weights.spec.group_index);
    for (int64_t e = 0; e < 4; ++e) {
      EXPECT_FALSE(must(weights.w13.expert(e)).group_index.empty());
      EXPECT_FALSE(must(weights.w2.expert(e)).group_index.empty());
      expect_values(weights, e, published(checkpoint, format));
    }
  }
}

TEST(Gptq, AllowsActOrderInOneMatrixOnly) {
  const SyntheticGptq format{.desc_act = true};
  auto checkpoint = SyntheticCheckpoint::gptq(format);
  for (int64_t e = 0; e < 4; ++e)
    put_in_order(checkpoint, SyntheticCheckpoint::expert(0, e, "down_proj"));
  const DescribedWeights weights = must(checkpoint.experts());
  EXPECT_TRUE(weights.spec.group_index);
  EXPECT_TRUE(weights.spec.matrices()[0].group_index);
  EXPECT_FALSE(weights.spec.matrices()[1].group_index);
  for (int64_t e = 0; e < 4; ++e) expect_values(weights, e, published(checkpoint, format));
  put_in_order(checkpoint, kUp);
  expect_unsupported(checkpoint.experts(),
                     {"module '" + kUp + "'", "needs columns in the same groups as '" + kGate});
}

TEST(Gptq, RejectsGateAndUpOfDifferentColumnOrder) {
  auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = true});
  checkpoint.at(kUp + ".g_idx").bytes =
      checkpoint.at(SyntheticCheckpoint::expert(0, 2, "up_proj.g_idx")).bytes;
  expect_unsupported(checkpoint.experts(), {"model.safetensors", "module '" + kUp + "'",
                                            "needs columns in the same groups as '" + kGate + "'",
                                            "their groups differ"});
}

TEST(Gptq, RejectsQkvOfDifferentColumnOrder) {
  auto checkpoint = SyntheticCheckpoint::gptq({.desc_act = true});
  const TensorBytes& another = checkpoint.at(kAttention + "o_proj.g_idx");
  checkpoint.at(kAttention + "v_proj.g_idx").bytes = another.bytes;
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_TRUE(opened.linear({kAttention + "q_proj", kAttention + "k_proj"}).ok());
  expect_unsupported(opened.linear(kQkv), {"module '" + kAttention + "v_proj'",
                                           "the same groups as '" + kAttention + "q_proj'"});
}

TEST(Gptq, NamesMissingTensor) {
  for (const char* part : {".qzeros", ".scales"}) {
    expect_missing(SyntheticCheckpoint::gptq(), kUp + part);
  }
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.remove(kUp + ".qweight");
  expect_bad(checkpoint.experts(), {"model.safetensors", "module '" + kUp + "'",
                                    kUp + ".weight or " + kUp + ".{qweight,qzeros,scales,g_idx}",
                                    "it has g_idx, qzeros, scales"});
}

TEST(Gptq, NamesTensorOfWrongTypeOrShape) {
  const WrongTensor tensors[] = {
      {".qweight",
       DType::kI16,
       {4, 16},
       "needs i32 [K/8, N] with N a multiple of 8; it is i16 [4, 16]"},
      {".qweight",
       DType::kI64,
       {4, 16},
       "needs i32 [K/8, N] with N a multiple of 8; it is i64 [4, 16]"},
      {".qweight", DType::kI32, {64}, "needs i32 [K/8, N] with N a multiple of 8; it is i32 [64]"},
      {".qweight",
       DType::kI32,
       {4, 15},
       "needs i32 [K/8, N] with N a multiple of 8; it is i32 [4, 15]"},
      {".qzeros", DType::kI16, {4, 2}, "needs i32 [4, 2]; it is i16 [4, 2]"},
      {".qzeros", DType::kI32, {2, 4}, "needs i32 [4, 2]; it is i32 [2, 4]"},
      {".scales", DType::kI16, {4, 16}, "needs f32, f16 or bf16; it is i16 [4, 16]"},
      {".scales", DType::kF64, {4, 16}, "needs f32, f16 or bf16; it is f64 [4, 16]"},
      {".scales", DType::kF16, {2, 16}, "needs shape [4, 16] (groups of 8); it is f16 [2, 16]"},
      {".g_idx", DType::kI64, {32}, "needs i32 [32]; it is i64 [32]"},
      {".g_idx", DType::kI32, {31}, "needs i32 [32]; it is i32 [31]"},
  };
  for (const WrongTensor& tensor : tensors) {
    expect_named(SyntheticCheckpoint::gptq(), kGate, tensor);
  }
  // Zero rows of words mean zero columns, so the file has too many zero points.
  auto checkpoint = SyntheticCheckpoint::gptq();
  checkpoint.reshape(kGate + ".qweight", {0, 16});
  expect_bad(checkpoint.experts(), {"model.safetensors", "tensor '" + kGate + ".qzeros'",
                                    "needs i32 [0, 2]; it is i32 [4, 2]"});
}

TEST(Gptq, RejectsGroupSizeThatDiffersFromFile) {
  auto checkpoint = SyntheticCheckpoint::gptq({.group_size = 8});
  checkpoint.quantization()["group_size"] = 16;
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [2, 2]; it is i32 [4, 2]"});
  checkpoint.quantization()["group_size"] = -1;
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [1, 2]; it is i32 [4, 2]"});
  checkpoint.quantization()["group_size"] = std::numeric_limits<int32_t>::max();
  expect_bad(checkpoint.experts(), {"gate_proj.qzeros'", "needs i32 [1, 2]; it is i32 [4, 2]"});
}

TEST(Gptq, ReadsSeparateConfigFileWithoutMethodName) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  json quantization = checkpoint.quantization();
  quantization.erase("quant_method");
  checkpoint.config.erase("quantization_config");
  checkpoint.files["quantize_config.json"] = quantization.dump();
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "gptq");
  EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), "int4-w4a16-g8");

  quantization["bits"] = 3;
  checkpoint.files["quantize_config.json"] = quantization.dump();
  expect_unsupported(checkpoint.open(), {"/quantize_config.json: bits: needs 4 or 8; it is 3"});
}

TEST(Gptq, NamesKeyOfInvalidConfig) {
  const WrongConfig configs[] = {
      {{{"bits", nullptr}}, "bits: needs a whole number from 2 to 8; it is missing"},
      {{{"bits", 16}}, "bits: needs a whole number from 2 to 8; it is 16"},
      {{{"bits", "4"}}, "bits: needs a whole number from 2 to 8; it is \"4\""},
      {{{"group_size", 0}}, "group_size: needs -1 or a positive size; it is 0"},
      {{{"group_size", -2}}, "group_size: needs a whole number from -1"},
      {{{"group_size", 1e10}}, "group_size: needs a whole number from -1"},
      {{{"sym", "yes"}}, "sym: needs true or false; it is \"yes\""},
      {{{"desc_act", 1}}, "desc_act: needs true or false; it is 1"},
      {{{"checkpoint_format", 2}}, "checkpoint_format or format: needs a string; it is 2"},
      {{{"modules_in_block_to_quantize", {{1}}}},
       "modules_in_block_to_quantize: needs lists of module names; it has 1"},
      {{{"modules_in_block_to_quantize", 1}},
       "modules_in_block_to_quantize: needs lists of module names; it has 1"},
  };
  for (const WrongConfig& config : configs) {
    expect_bad_config(SyntheticCheckpoint::gptq(), config);
  }
}

TEST(Gptq, RejectsUnsupportedVariantByName) {
  const WrongConfig configs[] = {
      {{{"bits", 3}}, "bits: needs 4 or 8; it is 3"},
      {{{"bits", 2}}, "bits: needs 4 or 8; it is 2"},
      {{{"checkpoint_format", "marlin"}},
       "checkpoint_format or format: needs gptq or gptq_v2; it is marlin"},
  };
  for (const WrongConfig& config : configs) {
    expect_unsupported_config(SyntheticCheckpoint::gptq(), config);
  }
}

TEST(Gptq, ListDecidesOnlyBesideFloats) {
  auto checkpoint = SyntheticCheckpoint::gptq();
  std::vector<std::string> listed;
  for (int e = 0; e < 4; ++e) {
    for (const char* part : {"gate_proj", "up_proj"})
      listed.push_back(str("mlp.experts.", e, ".", part));
  }
  checkpoint.quantization()["modules_in_block_to_quantize"] = json::array({listed});
  EXPECT_EQ(scheme_of(checkpoint, kDown), "int4-w4a16-g8");
  EXPECT_EQ(scheme_of(with_floats(checkpoint, kDown, {32, 16}), kDown), "bf16");
  for (int e = 0; e < 4; ++e) listed.push_back(str("mlp.experts.", e, ".down_proj"));
  checkpoint.quantization()["modules_in_block_to_quantize"] = listed;
  EXPECT_EQ(scheme_of(with_floats(checkpoint, kDown, {32, 16}), kDown), "int4-w4a16-g8");
}

}  // namespace
}  // namespace moracle::testing::gptq_test
