// Tests files of AutoRound: each form equals the files of the producer that packing_format names.
#include "awq_synthetic.h"
#include "checkpoint/reader_fixture.h"
#include "fp4_synthetic.h"
#include "fp8_synthetic.h"

namespace moracle::testing::auto_round_test {
namespace {

using nlohmann::json;

const std::string kO = kAttention + "o_proj";

// The config of AutoRound for a file of another producer.
SyntheticCheckpoint renamed(SyntheticCheckpoint checkpoint, const json& config) {
  json changed = {{"quant_method", "auto-round"}, {"bits", 4},   {"group_size", 8},
                  {"data_type", "int"},           {"sym", true}, {"autoround_version", "0.9.2"}};
  changed.update(config);
  checkpoint.quantization() = changed;
  return checkpoint;
}

SyntheticCheckpoint gptq(const json& config = json::object(), const SyntheticGptq& format = {}) {
  return renamed(SyntheticCheckpoint::gptq(format), config);
}

void expect_equal(const DescribedMatrix& a, const DescribedMatrix& b) {
  EXPECT_EQ(name(a.scheme()), name(b.scheme()));
  for (int64_t e = 0; e < a.num_experts(); ++e) {
    const CanonicalMatrix x = must(a.expert(e)), y = must(b.expert(e));
    EXPECT_TRUE(std::equal(x.codes.begin(), x.codes.end(), y.codes.begin(), y.codes.end()));
    EXPECT_EQ(x.scales, y.scales);
    EXPECT_EQ(x.zero_points, y.zero_points);
  }
}

// Both files hold the same bytes, so both readers must give the same numbers.
void expect_same_numbers(const SyntheticCheckpoint& own, const SyntheticCheckpoint& other) {
  const DescribedWeights a = must(own.experts()), b = must(other.experts());
  expect_equal(a.w13, b.w13);
  expect_equal(a.w2, b.w2);
}

std::string scheme_of(const Checkpoint& opened, const std::string& module) {
  const DescribedMatrix linear = must(opened.linear({module}));
  must(linear.expert(0));
  return name(linear.scheme());
}

TEST(AutoRound, OpensEveryNameOfTheMethod) {
  for (const char* method : {"auto-round", "auto_round", "intel/auto-round", "inc"}) {
    const auto checkpoint = gptq({{"quant_method", method}});
    EXPECT_EQ(must(checkpoint.open()).producer(), "auto-round");
    expect_same_numbers(checkpoint, SyntheticCheckpoint::gptq());
  }
}

TEST(AutoRound, FormDecidesZeroPointConvention) {
  struct Case {
    const char* key;
    const char* form;
    bool v2;
  };
  const Case cases[] = {{"packing_format", "auto_round:auto_gptq", false},
                        {"packing_format", "auto_round:gptq", false},
                        {"packing_format", "auto", false},
                        {"packing_format", "auto_round:gptqmodel", true},
                        {"packing_format", "auto_round", true},
                        {"packing_format", "auto_round:exllamav2", true},
                        {"backend", "gptq:exllamav2", false},
                        {"backend", "auto_round:gptq:exllamav2", false},
                        {"backend", "auto_gptq:marlin", false},
                        {"backend", "auto_round:exllamav2", true}};
  for (const auto& [key, form, v2] : cases) {
    for (const int bits : {4, 8}) {
      const SyntheticGptq format{.bits = bits, .symmetric = false, .v2 = v2};
      expect_same_numbers(gptq({{key, form}, {"sym", false}, {"bits", bits}}, format),
                          SyntheticCheckpoint::gptq(format));
    }
  }
  // A kernel's name beside packing_format does not change how the file is read.
  expect_same_numbers(gptq({{"packing_format", "auto_round:auto_gptq"}, {"backend", "auto_round"}}),
                      SyntheticCheckpoint::gptq());
}

TEST(AutoRound, NamesZeroPointsOfOtherConvention) {
  const auto checkpoint = gptq({{"packing_format", "auto_round:gptqmodel"}});
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {kDown + ".qzeros", "needs the zero point 8 everywhere, because the config says sym"});
}

TEST(AutoRound, ReadsAwqForm) {
  for (const char* form : {"auto_round:auto_awq", "auto_round:awq"}) {
    for (const bool zero_point : {true, false}) {
      const Awq format{.zero_point = zero_point};
      expect_same_numbers(
          renamed(awq_checkpoint(format), {{"packing_format", form}, {"sym", !zero_point}}),
          awq_checkpoint(format));
    }
  }
  expect_unsupported_config(gptq(), {{{"packing_format", "auto_round:auto_awq"}, {"bits", 8}},
                                     "bits: needs 4 in AWQ's form; it is 8"});
}

TEST(AutoRound, ReadsMicroscalingInCompressedTensorsForm) {
  for (const bool nvfp4 : {false, true}) {
    const fp4::Form form{nvfp4 ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized"};
    const auto other = fp4::checkpoint_of(form);
    json config = {{"packing_format", "auto_round:llm_compressor"},
                   {"data_type", nvfp4 ? "nv_fp" : "mx_fp"},
                   {"group_size", form.group()}};
    expect_same_numbers(renamed(other, config), other);
    EXPECT_TRUE(must(renamed(other, config).open()).not_used().empty());
    config["act_bits"] = 4;
    const std::vector<std::string> not_used = must(renamed(other, config).open()).not_used();
    ASSERT_EQ(not_used.size(), 1u);
    EXPECT_THAT(not_used[0], ::testing::HasSubstr("act_bits"));
    config["bits"] = 8;
    config["data_type"] = "nv_fp";
    expect_unsupported(renamed(other, config).open(), {"bits: needs 4 with data_type nv_fp"});
  }
}

TEST(AutoRound, ReadsFp8) {
  const auto blocks = fp8({8, 16});
  expect_same_numbers(renamed(blocks, {{"packing_format", "auto_round:fp8"},
                                       {"data_type", "fp"},
                                       {"bits", 8},
                                       {"group_size", {8, 16}},
                                       {"act_bits", 8},
                                       {"act_dynamic", true}}),
                      blocks);
  json config = {{"data_type", "fp"}, {"bits", 8}, {"group_size", -1}};
  const auto rows = renamed(fp8(kPerRow), config);
  EXPECT_EQ(name(must(rows.experts()).spec.scheme), "fp8-w8a16-channel");
  config.update(
      {{"packing_format", "auto_round:fp8_static"}, {"act_bits", 8}, {"act_dynamic", false}});
  auto stored = renamed(fp8(kPerRow), config);
  for (const auto& [name, tensor] : std::map(stored.tensors)) {
    if (!name.ends_with(".weight_scale")) continue;
    const std::string module = name.substr(0, name.rfind('.'));
    stored.add<float>(module + ".input_scale", DType::kF32, {1}, {0.5f});
  }
  const DescribedWeights weights = must(stored.experts());
  EXPECT_EQ(weights.spec.scheme.activation, kFp8StaticTensorSym);
  EXPECT_EQ(weights.w13.input_scales().at(1), 0.5f);
  config["act_dynamic"] = true;
  expect_unsupported(renamed(fp8(kPerRow), config).open(),
                     {"act_dynamic: needs false with group_size -1 or 0; it is true"});
}

TEST(AutoRound, ExtraConfigChangesModuleByName) {
  auto checkpoint = gptq({{"extra_config", {{kO, {{"bits", 8}, {"group_size", 16}}}}}});
  checkpoint.add_gptq(kO, 32, 32, {.bits = 8, .group_size = 16});
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(scheme_of(opened, kO), "int8-w8a16-g16");
  EXPECT_EQ(scheme_of(opened, "model.layers.1.self_attn.o_proj"), "int4-w4a16-g8");
  // A name is not an expression: it does not match a longer name.
  checkpoint.quantization()["extra_config"] = {{kO.substr(0, kO.size() - 4), {{"bits", 8}}}};
  expect_bad(must(checkpoint.open()).linear({kO}), {kO, "; it is i32 "});
}

TEST(AutoRound, ExtraConfigMatchesExpressionAnywhereInName) {
  // Rules are tried in file order. A text keeps it; a JSON value would sort the keys.
  const auto open = [](const char* extra) {
    auto checkpoint = gptq({{"extra_config", "HERE"}});
    checkpoint.add_gptq(kO, 32, 32, {.bits = 8});
    const TemporaryFolder folder;
    must(checkpoint.write(folder.path()));
    std::string text = checkpoint.config.dump();
    text.replace(text.find("\"HERE\""), 6, extra);
    folder.write("config.json", text);
    return must(Checkpoint::open(folder.path()));
  };
  const char* eight_first = R"({"layers\\.0\\..*o_proj": {"bits": 8}, ".*o_proj.*": {"bits": 4}})";
  const char* four_first = R"({"z|o_proj": {"bits": 4}, ".*o_proj.*": {"bits": 8}})";
  EXPECT_EQ(scheme_of(open(eight_first), kO), "int8-w8a16-g8");
  EXPECT_FALSE(open(four_first).linear({kO}).ok());
}

TEST(AutoRound, ExtraConfigMatchesNamesOfOtherModelClass) {
  auto checkpoint =
      gptq({{"extra_config", {{"model.language_model.layers.0.self_attn.o_proj", {{"bits", 8}}}}}});
  checkpoint.add_gptq(kO, 32, 32, {.bits = 8});
  EXPECT_EQ(scheme_of(must(checkpoint.open()), kO), "int8-w8a16-g8");
}

TEST(AutoRound, SixteenBitModulesArePlain) {
  const json plain = {{"bits", 16}, {"data_type", "float"}};
  auto checkpoint = gptq({{"extra_config", {{kO, plain}, {"lm_head", plain}}},
                          {"block_name_to_quantize", "model.layers"}});
  for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"})
    checkpoint.remove(kO + part);
  checkpoint.add_floats(kO + ".weight", {32, 32});
  EXPECT_EQ(scheme_of(must(checkpoint.open()), kO), "bf16");
}

TEST(AutoRound, BlocksMayBeTextOrLists) {
  const auto twice = [](const json& config) {
    auto checkpoint = gptq(config);
    checkpoint.add_floats(kO + ".weight", {32, 32});
    return scheme_of(must(checkpoint.open()), kO);
  };
  // Both forms are in the file, so the config decides.
  for (const char* key : {"block_name_to_quantize", "to_quant_block_names"}) {
    EXPECT_EQ(twice({{key, "model.layers.1"}}), "bf16");
    EXPECT_EQ(twice({{key, "model.layers.1, model.layers.0"}}), "int4-w4a16-g8");
    EXPECT_EQ(twice({{key, json::array({"model.layers.1"})}}), "bf16");
    EXPECT_EQ(twice({{key, json::array({json::array({"model.layers.0", "model.layers.1"})})}}),
              "int4-w4a16-g8");
    EXPECT_EQ(twice({{key, nullptr}}), "int4-w4a16-g8");
    expect_bad(gptq({{key, 1}}).open(), {"to_quant_block_names: needs block names"});
  }
}

TEST(AutoRound, RejectsUnsupportedConfigByKey) {
  for (const int bits : {2, 3, 5, 6, 7}) {
    const std::string line = str("bits: needs 4, 8 or 16; it is ", bits);
    expect_unsupported_config(gptq(), {{{"bits", bits}}, line});
    expect_unsupported_config(
        gptq(), {{{"extra_config", {{kO, {{"bits", bits}}}}}}, "extra_config." + kO + "." + line});
  }
  const std::string forms =
      "packing_format: needs auto_round, auto_round:auto_gptq, auto_round:gptqmodel or "
      "auto_round:auto_awq with data_type int";
  const WrongConfig configs[] = {
      {{{"packing_format", "auto_round:mlx"}}, forms + "; it is auto_round:mlx"},
      {{{"packing_format", "auto_round:fake"}}, forms + "; it is auto_round:fake"},
      {{{"packing_format", "auto_round:llm_compressor"}},
       forms + "; it is auto_round:llm_compressor"},
      {{{"data_type", "mx_int"}}, "data_type: needs int, mx_fp, nv_fp or fp; it is mx_int"},
      {{{"data_type", "nvfp4_v2"}}, "data_type: needs int, mx_fp, nv_fp or fp; it is nvfp4_v2"},
      {{{"data_type", "mx_fp"}, {"packing_format", "auto_round"}},
       "packing_format: needs auto_round:llm_compressor; it is auto_round"},
      {{{"data_type", "mx_fp"}}, "group_size: needs 32 with data_type mx_fp; it is 8"},
      {{{"act_bits", 8}}, "act_bits: needs 16, because integer weights have float activations"},
      {{{"group_size", 0}}, "group_size: needs -1 or a positive size; it is 0"},
      {{{"rotation_config", {{"hadamard_type", "random"}}}}, "rotation_config: needs to be absent"},
  };
  for (const WrongConfig& config : configs) expect_unsupported_config(gptq(), config);
  auto checkpoint = gptq();
  checkpoint.quantization().erase("bits");
  expect_bad(checkpoint.open(), {"bits: needs a whole number", "it is missing"});
}

}  // namespace
}  // namespace moracle::testing::auto_round_test
