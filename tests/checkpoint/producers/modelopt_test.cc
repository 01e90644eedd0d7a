// Compares the ModelOpt reader with the formulas, element by element.
#include "checkpoint/read_stored.h"
#include "checkpoint/reader_fixture.h"
#include "modelopt_synthetic.h"

namespace moracle::testing::modelopt_test {
namespace {

using nlohmann::json;

const std::string kQuery = kAttention + "q_proj";

// Scales: one per tensor or block, [64] per row, or [64, 2] exponents of groups of 32.
double scale_at(const SyntheticCheckpoint& checkpoint, const std::string& name, int64_t n,
                int64_t k) {
  const auto& scales = checkpoint.tensors.at(name);
  if (scales.dtype == DType::kU8) {
    return std::ldexp(1.0, checkpoint.get<uint8_t>(name, n * 2 + k / 32) - 127);
  }
  return checkpoint.get<float>(name, scales.bytes.size() == 4 ? 0 : n);
}

Value published(const SyntheticCheckpoint& checkpoint) {
  return [&checkpoint](const std::string& module, int64_t n, int64_t k) {
    return e4m3(checkpoint.get<uint8_t>(module + ".weight", n * 64 + k)) *
           scale_at(checkpoint, module + ".weight_scale", n, k);
  };
}

struct Case {
  const char* algorithm;
  const char* scheme;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.algorithm;
}

class ModelOptAlgorithms : public ::testing::TestWithParam<Case> {};

TEST_P(ModelOptAlgorithms, DequantizeToPublishedValues) {
  const auto checkpoint = modelopt(GetParam().algorithm);
  const Checkpoint opened = must(checkpoint.open());
  EXPECT_EQ(opened.producer(), "modelopt");
  const DescribedWeights weights = must(opened.moe_layer(0));
  EXPECT_EQ(name(weights.spec.scheme), GetParam().scheme);
  for (int64_t e = 0; e < 2; ++e) expect_values(weights, e, published(checkpoint));
  EXPECT_TRUE(opened.router("model.layers.0.mlp.gate").ok());
  EXPECT_TRUE(opened.linear({"lm_head"}).ok());
}

TEST_P(ModelOptAlgorithms, ReadFromEitherConfigFile) {
  auto checkpoint = modelopt(GetParam().algorithm);
  const json nested = {{"producer", {{"name", "modelopt"}}},
                       {"quantization",
                        {{"quant_algo", GetParam().algorithm},
                         {"kv_cache_quant_algo", nullptr},
                         {"exclude_modules", {"lm_head"}}}}};
  checkpoint.config.erase("quantization_config");
  checkpoint.files["hf_quant_config.json"] = nested.dump();
  EXPECT_EQ(name(must(checkpoint.experts()).spec.scheme), GetParam().scheme);
  // config.json wins over hf_quant_config.json.
  auto both = modelopt(GetParam().algorithm);
  both.files["hf_quant_config.json"] = R"({"quantization": {"quant_algo": "NVFP4"}})";
  EXPECT_TRUE(both.experts().ok());
}

INSTANTIATE_TEST_SUITE_P(All, ModelOptAlgorithms,
                         ::testing::Values(Case{"MXFP8", "mxfp8-w8a8"},
                                           Case{"FP8", "fp8-w8a8-tensor-static"},
                                           Case{"FP8_PER_CHANNEL_PER_TOKEN", "fp8-w8a8-channel"},
                                           Case{"FP8_PB_WO", "fp8-w8a8-block128x128"},
                                           Case{"FP8_BLOCK_SCALES", "fp8-w8a8-block128x128"}),
                         [](const auto& instance) {
                           return std::string(instance.param.algorithm);
                         });

TEST(ModelOpt, AcceptsEverySpellingOfBlocks) {
  auto checkpoint = modelopt("FP8_PB_WO");
  checkpoint.quantization()["quant_algo"] = "fp8_pb_wo";
  checkpoint.reshape(kDown + ".weight_scale", {1, 1});
  expect_values(must(checkpoint.experts()).w2, 1, {kDown}, published(checkpoint));
  auto renamed = checkpoint;
  renamed.rename(kDown + ".weight_scale", kDown + ".weight_scale_inv");
  expect_values(must(renamed.experts()).w2, 1, {kDown}, published(checkpoint));
  checkpoint.reshape(kDown + ".weight_scale", {2, 1, 1, 1});
  expect_bad(checkpoint.experts(), {"tensor '" + kDown + ".weight_scale'",
                                    "needs shape [1, 1] (blocks of 128 x 128 of [64, 64])"});
}

TEST(ModelOpt, ReadsFullExponentRange) {
  auto checkpoint = modelopt("MXFP8");
  const std::string scale = kDown + ".weight_scale";
  checkpoint.set<uint8_t>(scale, 0, 0);
  checkpoint.set<uint8_t>(scale, 1, 127);
  checkpoint.set<uint8_t>(scale, 2, 254);
  const DescribedWeights weights = must(checkpoint.experts());
  expect_values(weights.w2, 1, {kDown}, published(checkpoint));
  const std::vector<float> scales = must(weights.w2.expert(1)).scales;
  EXPECT_EQ(scales[0], 0x1p-127f);
  EXPECT_EQ(scales[1], 1.0f);
  EXPECT_EQ(scales[2], 0x1p127f);
  checkpoint.set<uint8_t>(scale, 77, 255);
  expect_bad(must(checkpoint.experts()).w2.expert(1),
             {"tensor '" + scale + "'", "needs exponents from 0 to 254; element [38, 1] is 255"});
}

TEST(ModelOpt, NamesTensorsOfWrongType) {
  const WrongTensor tensors[] = {
      {".weight_scale", DType::kF32, {64, 2}, "needs u8 exponents; it is f32 [64, 2]"},
      {".weight_scale",
       DType::kU8,
       {64, 4},
       "needs shape [64, 2] (blocks of 1 x 32 of [64, 64]); it is u8 [64, 4]"},
      {".weight",
       DType::kF8E4M3,
       {64, 48},
       "needs f8_e4m3 [N, K] with K a multiple of 32; it is f8_e4m3 [64, 48]"},
      // packed NVFP4 codes
      {".weight", DType::kU8, {64, 64}, "needs f8_e4m3 [N, K] with K a multiple of 32; it is u8"},
  };
  for (const WrongTensor& tensor : tensors) expect_named(modelopt("MXFP8"), kUp, tensor);
  expect_missing(modelopt("FP8"), kUp + ".input_scale");
  auto checkpoint = modelopt("FP8");
  checkpoint.add(kUp + ".weight_scale", DType::kF32, {64}, std::vector<float>(64));
  expect_bad(checkpoint.experts(), {"needs shape [] (one scale for the tensor); it is f32 [64]"});
}

// Groups of 32 with scales of the same shape: the type of the scales decides.
TEST(ModelOpt, DistinguishesMxfp8FromFp8OfEqualShapes) {
  const auto mx = modelopt("MXFP8");
  auto fp8 = mx;
  fp8.quantization() = {{"quant_method", "fp8"}, {"weight_block_size", {1, 32}}};
  EXPECT_EQ(must(fp8.experts()).spec.scheme, must(mx.experts()).spec.scheme);
  for (const auto& [tensor, value] : mx.tensors) {
    if (!tensor.ends_with("_scale")) continue;
    fp8.remove(tensor);
    fp8.add(tensor + "_inv", DType::kF32, value.shape, std::vector<float>(64 * 2, 2.0f));
  }
  const Scheme a = must(mx.experts()).spec.scheme, b = must(fp8.experts()).spec.scheme;
  EXPECT_EQ(a, (Scheme{kMxfp8Static, kMxfp8Dynamic}));
  EXPECT_EQ(b, (Scheme{fp8_static_block(1, 32), fp8_dynamic_group(32)}));
  EXPECT_NE(a, b);
  EXPECT_NE(name(a), name(b));
}

TEST(ModelOpt, ExclusionDecidesOnlyBesideFloats) {
  for (const char* pattern :
       {"model.layers.0.self_attn.q_proj", "self_attn", "layers.0", "*.q_proj",
        "model.layers.[0-3].self_attn*", "model.layers.?.self_attn.*"}) {
    auto checkpoint = modelopt("MXFP8");
    checkpoint.quantization()["ignore"].push_back(pattern);
    EXPECT_EQ(scheme_of(checkpoint, kQuery), "mxfp8-w8a8") << pattern;
    checkpoint = with_floats(checkpoint, kQuery, {64, 64});
    EXPECT_EQ(scheme_of(checkpoint, kQuery), "bf16") << pattern;
    checkpoint.remove(kQuery + ".weight_scale");
    EXPECT_TRUE(must(checkpoint.open()).linear({kQuery}).ok()) << pattern;
  }
  // A pattern matches whole parts between dots.
  for (const char* pattern : {"", "self_attn.q", "layers.1", "q_proj*", "attn.q_proj", "["}) {
    auto checkpoint = modelopt("MXFP8");
    checkpoint.quantization()["ignore"].push_back(pattern);
    EXPECT_TRUE(must(checkpoint.open()).linear({kQuery}).ok()) << pattern;
  }
}

TEST(ModelOpt, RejectsOtherAlgorithmByName) {
  for (const char* algorithm : {"W4A16_AWQ", "INT4_AWQ", "W8A8_SQ_PER_CHANNEL", "FP8_PB", ""}) {
    auto checkpoint = modelopt("MXFP8");
    checkpoint.quantization()["quant_algo"] = algorithm;
    expect_unsupported(checkpoint.open(), {kConfig + "quant_algo: needs one of FP8, ",
                                           str("MIXED_PRECISION; it is ", algorithm)});
  }
  const WrongConfig configs[] = {
      {{{"group_size", 16}}, "group_size: needs 32, as MXFP8 has it; it is 16"},
      {{{"quantized_layers", {{"a", {{"quant_algo", "NVFP4"}, {"group_size", 32}}}}}},
       "quantized_layers.a.group_size: needs 16, as NVFP4 has it; it is 32"}};
  for (const WrongConfig& config : configs) expect_unsupported_config(modelopt("MXFP8"), config);
  expect_bad_config(modelopt("MXFP8"), {{{"quantized_layers", {{"a", 1}}}},
                                        "quantized_layers.a: needs an object; it is 1"});
  auto checkpoint = modelopt("MXFP8");
  checkpoint.quantization().erase("quant_algo");
  expect_bad(checkpoint.open(), {"quantization_config.quant_algo: needs a string"});
  checkpoint.config.erase("quantization_config");
  checkpoint.files["hf_quant_config.json"] = R"({"quantization": {"quant_algo": "W4A16_AWQ"}})";
  expect_unsupported(checkpoint.open(),
                     {"/hf_quant_config.json: quantization.quant_algo: needs one of FP8"});
}

TEST(ModelOpt, ReadsRealFile) {
  const auto opened = open_stored("qwen3moe-modelopt-mxfp8");
  if (!opened) GTEST_SKIP() << "it is missing";
  const DescribedWeights weights = must(opened->moe_layer(1));
  EXPECT_EQ(name(weights.spec.scheme), "mxfp8-w8a8");
  for (int64_t e = 0; e < weights.w13.num_experts(); ++e) {
    EXPECT_EQ(must(weights.w13.expert(e)).scales.size(), 256u * 8u);
    EXPECT_EQ(must(weights.w2.expert(e)).scales.size(), 256u * 4u);
  }
  EXPECT_TRUE(opened->router("model.layers.1.mlp.gate").ok());
}

}  // namespace
}  // namespace moracle::testing::modelopt_test
