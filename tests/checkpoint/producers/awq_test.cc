// Compares the AWQ reader with the published formula.
#include <array>

#include "awq_synthetic.h"
#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"

namespace moracle::testing::awq_test {
namespace {

using nlohmann::json;

// (code - zero) · scale. The nibbles of a word, lowest first, hold columns 0 2 4 6 1 3 5 7.
Value published(const SyntheticCheckpoint& checkpoint, const Awq& format) {
  return [&checkpoint, format](const std::string& module, int64_t n, int64_t k) {
    constexpr std::array<int64_t, 8> kColumns = {0, 2, 4, 6, 1, 3, 5, 7};
    const int64_t width = checkpoint.tensors.at(module + ".qweight").shape[1];
    const int64_t group = format.group_size == -1 ? 0 : k / format.group_size;
    int shift = 0;
    while (kColumns[shift / 4] != n % 8) shift += 4;
    auto nibble = [&](const char* part, int64_t row) {
      const auto word = checkpoint.get<uint32_t>(module + part, row * width + n / 8);
      return static_cast<int>(word >> shift & 15);
    };
    const auto scale = checkpoint.get<uint16_t>(module + ".scales", group * width * 8 + n);
    return (nibble(".qweight", k) - nibble(".qzeros", group)) *
           static_cast<double>(f16_to_float(scale));
  };
}

class AwqFormats : public ::testing::TestWithParam<Awq> {};

TEST_P(AwqFormats, DequantizeToPublishedValues) {
  const Awq format = GetParam();
  const auto checkpoint = awq_checkpoint(format);
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "awq");
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme),
            str("int4-w4a16-", format.group_size == -1 ? "channel" : str("g", format.group_size),
                format.zero_point ? "-asym" : ""));
  expect_values(weights, 1, published(checkpoint, format));
  EXPECT_EQ(must(weights.w2.expert(1)).zero_points.empty(), !format.zero_point);
}

INSTANTIATE_TEST_SUITE_P(All, AwqFormats,
                         ::testing::Values(Awq{8, true}, Awq{8, false}, Awq{16, true},
                                           Awq{12, true}, Awq{128, true}, Awq{-1, true},
                                           Awq{-1, false}),
                         [](const auto& instance) { return str(instance.param); });

TEST(Awq, UnpacksAwqColumnOrderOfWord) {
  auto checkpoint = awq_checkpoint();
  // Columns 0 to 7 of row 0 hold 0 to 7. The lowest nibbles hold the even columns.
  checkpoint.set<uint32_t>(kDown + ".qweight", 0, 0x75316420u);
  checkpoint.set<uint32_t>(kDown + ".qzeros", 0, 0x75316420u);
  const DescribedWeights weights = must(checkpoint.experts());
  const CanonicalMatrix w2 = must(weights.w2.expert(1));
  std::vector<double> row(16);
  for (int n = 0; n < 8; ++n) {
    unpack_row(w2, n, row.data());
    EXPECT_EQ(row[0], n - 8);
    EXPECT_EQ(w2.zero_points[2 * n], n - 8);  // stored as they are, not less 1
  }
}

TEST(Awq, AllowsMissingZerosTensorWithoutZeroPoints) {
  auto checkpoint = awq_checkpoint({.zero_point = false});
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    for (int e : {0, 1}) checkpoint.remove(SyntheticCheckpoint::expert(0, e, part) + ".qzeros");
  }
  const auto with = awq_checkpoint({.zero_point = false});
  const Value value = published(with, {.zero_point = false});
  expect_values(must(checkpoint.experts()).w2, 1, {kDown}, value);
}

TEST(Awq, NamesZeroPointThatConfigExcludes) {
  auto checkpoint = awq_checkpoint({.zero_point = false});
  checkpoint.set<uint32_t>(kDown + ".qzeros", 5, 0x88868888u);  // nibble 4 is column 1 of word 1
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {"model.safetensors", "tensor '" + kDown + ".qzeros'",
              "needs the zero point 8 everywhere, because the config says zero_point false",
              "group 1, column 9 has 6"});
}

TEST(Awq, AcceptsBf16Scales) {
  auto checkpoint = awq_checkpoint();
  std::vector<uint16_t> scales(32 * 2);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = float_to_bf16(static_cast<float>(i));
  checkpoint.add(kDown + ".scales", DType::kBF16, {2, 32}, scales);
  EXPECT_EQ(must(must(checkpoint.experts()).w2.expert(1)).scales[2 * 3 + 1], 32 + 3);
}

TEST(Awq, NamesBadTensors) {
  const WrongTensor tensors[] = {
      {".qweight", DType::kI64, {32, 2}, "needs i32 [K, N/8]; it is i64 [32, 2]"},
      {".qweight", DType::kI8, {32, 2}, "needs i32 [K, N/8]; it is i8 [32, 2]"},
      {".qweight", DType::kI32, {64}, "needs i32 [K, N/8]; it is i32 [64]"},
      {".qzeros", DType::kI8, {4, 2}, "needs i32 [4, 2]; it is i8 [4, 2]"},
      {".qzeros", DType::kI32, {2, 4}, "needs i32 [4, 2]; it is i32 [2, 4]"},
      {".scales", DType::kI32, {4, 16}, "needs f32, f16 or bf16; it is i32 [4, 16]"},
      {".scales", DType::kF16, {2, 16}, "needs shape [4, 16] (groups of 8); it is f16 [2, 16]"},
  };
  for (const WrongTensor& tensor : tensors) expect_named(awq_checkpoint(), kGate, tensor);
  for (const char* part : {".qzeros", ".scales"}) expect_missing(awq_checkpoint(), kUp + part);
  auto checkpoint = awq_checkpoint();
  checkpoint.remove(kUp + ".qweight");
  expect_bad(checkpoint.experts(), {kUp + ".weight or " + kUp + ".{qweight,qzeros,scales}"});
  checkpoint = awq_checkpoint();
  checkpoint.set<uint16_t>(kUp + ".scales", 21, 0x7e00);
  expect_bad(must(checkpoint.experts()).w13.expert(1),
             {"tensor '" + kUp + ".scales'", "needs finite numbers; element [1, 5] is nan"});
}

TEST(Awq, RejectsOtherVersionByName) {
  const WrongConfig configs[] = {
      {{{"version", "gemv"}}, "version: needs gemm; it is gemv"},
      {{{"version", "GEMV_FAST"}}, "version: needs gemm; it is GEMV_FAST"},
      {{{"version", "marlin"}}, "version: needs gemm; it is marlin"},
      {{{"checkpoint_format", "gemv"}}, "checkpoint_format: needs gemm; it is gemv"},
      {{{"format", "llm-awq"}}, "format: needs gemm; it is llm-awq"},
      {{{"backend", "llm-awq"}}, "backend: needs autoawq; it is llm-awq"},
      {{{"bits", 8}}, "bits or w_bit: needs 4; it is 8"},
      {{{"bits", 3}}, "bits or w_bit: needs 4; it is 3"},
  };
  for (const WrongConfig& config : configs) expect_unsupported_config(awq_checkpoint(), config);
  auto checkpoint = awq_checkpoint();
  checkpoint.quantization()["version"] = "GEMM";
  EXPECT_TRUE(checkpoint.experts().ok());
  checkpoint.quantization()["group_size"] = 0;
  expect_bad(checkpoint.open(), {"group_size or q_group_size: needs -1 or a positive size"});
  checkpoint.quantization().erase("bits");
  expect_bad(checkpoint.open(), {"bits or w_bit: needs a whole number", "it is missing"});
}

// AutoAWQ compares parts of names: "gate", the router, is also part of "gate_proj".
TEST(Awq, ModuleIsQuantizedThoughPartOfItsNameIsExcluded) {
  auto checkpoint = awq_checkpoint();
  const auto original = awq_checkpoint();
  const Value value = published(original, Awq{});
  for (const char* part : {"gate", "experts.1.do", "self_attn"}) {
    checkpoint.quantization()["modules_to_not_convert"] = {part};
    expect_values(must(checkpoint.experts()), 1, value);
  }
  checkpoint.quantization()["modules_to_not_convert"] = {"experts.1.do"};
  EXPECT_EQ(scheme_of(with_floats(checkpoint, kDown, {32, 16}), kDown), "bf16");
  checkpoint.quantization()["modules_to_not_convert"] = "mlp.gate";
  expect_bad(checkpoint.open(), {"modules_to_not_convert: needs an array of strings"});
}

TEST(Awq, ReadsConfigFromSeparateFile) {
  auto checkpoint = awq_checkpoint();
  checkpoint.config.erase("quantization_config");
  const json old = {{"zero_point", true}, {"q_group_size", 8}, {"w_bit", 4}, {"version", "GEMM"}};
  checkpoint.files["quant_config.json"] = old.dump();
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "awq");
  EXPECT_EQ(name(must(opened.moe_layer(0)).spec.scheme), "int4-w4a16-g8-asym");

  json named = old;
  named["quant_method"] = "awq";
  checkpoint.files = {{"quantize_config.json", named.dump()}};
  EXPECT_EQ(must(checkpoint.open()).producer(), "awq");
  named["version"] = "gemv";
  checkpoint.files = {{"quant_config.json", named.dump()}};
  expect_unsupported(checkpoint.open(), {"/quant_config.json: version: needs gemm; it is gemv"});
}

TEST(Awq, ReadsFilesOfGptqModel) {
  expect_stored("qwen3moe-awq-int4-g128", "awq", "int4-w4a16-g128-asym");
}

}  // namespace
}  // namespace moracle::testing::awq_test
