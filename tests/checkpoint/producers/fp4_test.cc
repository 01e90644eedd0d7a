// Compares MXFP4 and NVFP4 files of compressed-tensors and ModelOpt with the published formulas,
// element by element.
#include "checkpoint/reader_fixture.h"
#include "fp4_synthetic.h"

namespace moracle::testing::fp4_test {
namespace {

using nlohmann::json;

using fp4::checkpoint_of;
using fp4::Form;
using fp4::kSide;

Value published(const SyntheticCheckpoint& checkpoint, const Form& form) {
  return [&checkpoint, form](const std::string& module, int64_t n, int64_t k) -> double {
    constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const int64_t at = n * kSide + k;
    const int code = checkpoint.get<uint8_t>(module + form.codes(), at / 2) >> (at % 2 * 4) & 15;
    const double value = (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
    const auto scale = checkpoint.get<uint8_t>(module + ".weight_scale", at / form.group());
    if (!form.nvfp4()) return value * std::ldexp(1.0, scale - 127);
    const float global = checkpoint.get<float>(module + form.global(), 0);
    const auto of_group = static_cast<float>(e4m3(scale));
    return value * double{form.modelopt() ? of_group * global : of_group / global};
  };
}

class Fp4Files : public ::testing::TestWithParam<Form> {};

TEST_P(Fp4Files, DequantizeToPublishedValues) {
  const Form& form = GetParam();
  const auto checkpoint = checkpoint_of(form);
  const Checkpoint opened = must(checkpoint.open());
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme), form.nvfp4() ? "nvfp4-w4a16" : "mxfp4-w4a16");
  const Value value = published(checkpoint, form);
  expect_values(weights, 1, value);
  expect_values(must(opened.linear(kQkv)), 0, kQkv, value);
  EXPECT_TRUE(opened.linear({kAttention + "o_proj"}).ok());
  for (const std::string& left : opened.unclaimed())
    EXPECT_EQ(left.find("_proj"), left.npos) << left << " is not claimed by any module";
}

// 4-bit activations are replaced by floats, and not_used() reports it.
TEST_P(Fp4Files, ReportUnusedActivations) {
  const Form& form = GetParam();
  const std::vector<std::string> unused = must(checkpoint_of(form).open()).not_used();
  ASSERT_EQ(unused.size(), form.asks_for_activations() ? 1u : 0u);
  if (unused.empty()) return;
  EXPECT_THAT(unused[0], ::testing::StartsWith("4-bit activations ("));
  EXPECT_THAT(unused[0],
              ::testing::HasSubstr(form.modelopt() ? "quant_algo NVFP4"
                                                   : "config_groups.group_0.input_activations"));
}

INSTANTIATE_TEST_SUITE_P(All, Fp4Files,
                         ::testing::Values(Form{"mxfp4-pack-quantized"},
                                           Form{"mxfp4-pack-quantized", true},
                                           Form{"nvfp4-pack-quantized"},
                                           Form{"nvfp4-pack-quantized", true}, Form{"NVFP4"},
                                           Form{"W4A16_NVFP4"}),
                         [](const auto& test) {
                           std::string text = test.param.format;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text + (test.param.quantized_activations ? "_activations" : "");
                         });

TEST(Fp4Tensors, NamesTensorsOfWrongType) {
  const Form nvfp4{"nvfp4-pack-quantized"}, mxfp4{"mxfp4-pack-quantized"};
  const WrongTensor tensors[] = {
      {".weight_packed", DType::kI32, {64, 8}, "needs u8 [N, K/2] with K a multiple of 16"},
      {".weight_packed", DType::kU8, {128, 16}, "needs f8_e4m3 [128, 2]"},
      {".weight_scale", DType::kU8, {64, 4}, "needs f8_e4m3 [64, 4]; it is u8 [64, 4]"},
      {".weight_global_scale", DType::kI32, {1}, "it is i32 [1]"},
  };
  for (const WrongTensor& tensor : tensors) {
    auto checkpoint = checkpoint_of(nvfp4);
    const std::string name = kUp + tensor.part;
    checkpoint.retype(name, tensor.dtype);
    checkpoint.reshape(name, tensor.shape);
    expect_bad(checkpoint.experts(), {"model.safetensors", kUp, tensor.line});
  }
  expect_missing(checkpoint_of(nvfp4), kUp + ".weight_global_scale");
  expect_missing(checkpoint_of(mxfp4), kUp + ".weight_scale");
  for (const float wrong : {0.0f, -1.0f, std::numeric_limits<float>::infinity()}) {
    auto checkpoint = checkpoint_of(nvfp4);
    checkpoint.set<float>(kUp + ".weight_global_scale", 0, wrong);
    expect_bad(checkpoint.experts(), {kUp + ".weight_global_scale"});
  }
  auto checkpoint = checkpoint_of(nvfp4);
  checkpoint.set<uint8_t>(kUp + ".weight_scale", 5, 127);
  expect_bad(must(checkpoint.experts()).w13.expert(1), {kUp + ".weight_scale", "[1, 1]"});
}

// Newer files give exponents their own type.
TEST(Fp4Tensors, ReadsExponentsOfEitherType) {
  auto checkpoint = checkpoint_of({"mxfp4-pack-quantized"});
  const std::vector<float> scales = must(must(checkpoint.experts()).w2.expert(1)).scales;
  checkpoint.retype(kDown + ".weight_scale", DType::kF8E8M0);
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales, scales);
}

TEST(Fp4Configs, NamesOtherActivationsAndGroups) {
  auto checkpoint = checkpoint_of({"nvfp4-pack-quantized", true});
  json& group = checkpoint.quantization()["config_groups"]["group_0"];
  group["input_activations"]["num_bits"] = 8;
  expect_unsupported(checkpoint.open(), {"input_activations.num_bits: needs 4; it is 8"});
  group["input_activations"] = nullptr;
  group["weights"]["group_size"] = 32;
  expect_unsupported(checkpoint.open(), {"weights.group_size: needs 16; it is 32"});
}

// Experts of DeepSeek-V4, whose other layers are e4m3: MXFP4 as published, NVFP4 as NVIDIA has
// them.
TEST(Fp4InFp8Files, BytesInPlaceOfE4m3AreCodesOfFourBits) {
  for (const bool nvfp4 : {false, true}) {
    SCOPED_TRACE(nvfp4 ? "nvfp4" : "mxfp4");
    const Form form{nvfp4 ? "NVFP4" : "mxfp4-pack-quantized"};
    const SyntheticCheckpoint stored = checkpoint_of(form);
    SyntheticCheckpoint other = stored;
    other.quantization() = {{"quant_method", "fp8"},
                            {"activation_scheme", "dynamic"},
                            {"weight_block_size", {128, 128}},
                            {"scale_fmt", "ue8m0"}};
    for (const auto& [name, tensor] : stored.tensors) {
      if (!name.ends_with(form.codes()) || nvfp4 || !name.ends_with("_packed")) continue;
      const std::string module = name.substr(0, name.size() - form.codes().size());
      other.tensors.at(name).dtype = DType::kI8;
      other.rename(name, module + ".weight");
      other.rename(module + ".weight_scale", module + ".weight_scale_inv");
    }
    const Checkpoint opened = must(other.open());
    EXPECT_EQ(opened.producer(), "fp8");
    const DescribedWeights weights = must(opened.moe_layer(0));
    EXPECT_EQ(name(weights.spec.scheme), nvfp4 ? "nvfp4-w4a16" : "mxfp4-w4a16");
    expect_values(weights, 1, published(stored, form));
  }
}

}  // namespace
}  // namespace moracle::testing::fp4_test
