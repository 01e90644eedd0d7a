// Tests FP8 KV caches of checkpoints: the keys that configure them, and the names of their scales.
#include "checkpoint/kv_scales.h"

#include "checkpoint/producers/fp8_synthetic.h"
#include "checkpoint/producers/modelopt_synthetic.h"
#include "checkpoint/reader_fixture.h"

namespace moracle::testing::kv_scales_test {
namespace {

using nlohmann::json;

const json kFp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}};

std::vector<std::string> not_used(const SyntheticCheckpoint& checkpoint) {
  return must(checkpoint.open()).not_used();
}

TEST(KvScales, KeyOfEveryProducerIsReported) {
  const std::pair<SyntheticCheckpoint, json> files[] = {
      {modelopt("MXFP8"), {{"kv_cache_quant_algo", "FP8"}}},
      {modelopt("MXFP8"), {{"kv_cache_scheme", kFp8}}},
      {fp8({8, 16}), {{"kv_cache_scheme", "static"}}},
      {SyntheticCheckpoint::int8({.layers = 1}), {{"kv_cache_scheme", kFp8}}},
      {SyntheticCheckpoint::gptq({}, {.layers = 1}), {{"kv_cache_scheme", kFp8}}}};
  for (auto [checkpoint, key] : files) {
    checkpoint.quantization().update(key);
    const std::string place = kConfig.substr(14) + key.begin().key();
    EXPECT_EQ(
        not_used(checkpoint),
        std::vector<std::string>{"FP8 keys and values (" + place +
                                 "), unless kv_cache is fp8, with scale 1: the file has none"});
    checkpoint.add(kAttention + "k_scale", DType::kF32, {}, std::vector<float>{0.5f});
    checkpoint.add(kAttention + "v_scale", DType::kF32, {}, std::vector<float>{0.25f});
    EXPECT_EQ(not_used(checkpoint),
              std::vector<std::string>{"FP8 keys and values (" + place +
                                       "), unless kv_cache is fp8, with the scales of the file"});
    EXPECT_TRUE(plan(must(checkpoint.open())).ok());
  }
}

TEST(KvScales, OtherCacheTypesAreReported) {
  auto checkpoint = modelopt("MXFP8");
  EXPECT_TRUE(not_used(checkpoint).empty());
  checkpoint.quantization()["kv_cache_quant_algo"] = "NVFP4";
  EXPECT_EQ(not_used(checkpoint),
            std::vector<std::string>{"the type of keys and values (quantization_config."
                                     "kv_cache_quant_algo: \"NVFP4\"); kv_cache decides it"});
  checkpoint.quantization()["kv_cache_quant_algo"] = nullptr;
  EXPECT_TRUE(not_used(checkpoint).empty());
}

TEST(KvScales, KeyOfHfQuantConfigIsReported) {
  auto checkpoint = modelopt("MXFP8");
  const json nested = {{"quant_algo", "MXFP8"}, {"kv_cache_quant_algo", "FP8"}};
  checkpoint.config.erase("quantization_config");
  checkpoint.files["hf_quant_config.json"] = json{{"quantization", nested}}.dump();
  EXPECT_THAT(not_used(checkpoint), ::testing::ElementsAre(::testing::StartsWith(
                                        "FP8 keys and values (quantization.kv_cache_quant_algo)")));
}

// Scales without a key, in a file without a quantization config.
TEST(KvScales, ScalesOfEveryNameAreReadAndClaimed) {
  const std::pair<const char*, const char*> names[] = {
      {"k_scale", "v_scale"},
      {"k_proj.k_scale", "v_proj.v_scale"},
      {"attn.k_scale", "attn.v_scale"},
      {"k_proj.output_scale", "v_proj.output_scale"},
      {"qkv_proj.k_scale", "qkv_proj.v_scale"},
      {"kv_scale", "kv_scale"}};
  for (const auto& [key, value] : names) {
    auto checkpoint = SyntheticCheckpoint::plain({.layers = 1});
    checkpoint.add(kAttention + key, DType::kF32, {1}, std::vector<float>{0.5f});
    checkpoint.add(kAttention + value, DType::kBF16, {}, std::vector<uint16_t>{0x3e80});
    for (const char* unused : {"q_scale", "attn.prob_scale", "q_proj.output_scale", "k_zero_point"})
      checkpoint.add(kAttention + unused, DType::kF32, {}, std::vector<float>{0.0f});
    const Checkpoint opened = must(checkpoint.open());
    const KvScales scales = must(read_kv_scales(opened, kAttention));
    const bool one = std::string_view(key) == value;
    EXPECT_EQ(scales.keys, std::vector<float>{one ? 0.25f : 0.5f}) << key;
    EXPECT_EQ(scales.values, std::vector<float>{0.25f}) << value;
    for (const std::string& left : opened.unclaimed())
      EXPECT_FALSE(left.ends_with("scale") || left.ends_with("point")) << left;
    EXPECT_THAT(opened.not_used(), ::testing::ElementsAre(::testing::StartsWith(
                                       "scales of FP8 keys and values (" + kAttention)));
    EXPECT_TRUE(plan(opened).ok()) << key;
  }
}

TEST(KvScales, TensorsOfOtherModulesAreNotScales) {
  auto checkpoint = SyntheticCheckpoint::plain({.layers = 1});
  checkpoint.add(kAttention + "indexer.k_scale", DType::kF32, {}, std::vector<float>{0.5f});
  EXPECT_TRUE(not_used(checkpoint).empty());
  expect_bad(plan(must(checkpoint.open())), {kAttention + "indexer.k_scale", "does not use it"});
}

TEST(KvScales, Fp8CacheNeedsOnePositiveScale) {
  const auto planned = [](const std::vector<float>& scales) {
    auto checkpoint = SyntheticCheckpoint::plain({.layers = 1});
    checkpoint.add(kAttention + "k_scale", DType::kF32, {static_cast<int64_t>(scales.size())},
                   scales);
    const Checkpoint opened = must(checkpoint.open());
    EXPECT_TRUE(plan(opened).ok()) << "without fp8 they do not matter";
    ModelOptions options;
    options.kv_cache = DType::kF8E4M3;
    return plan(opened, options);
  };
  EXPECT_TRUE(planned({0.5f}).ok());
  const auto refusal = [&](const std::vector<float>& scales) {
    const auto refused = planned(scales);
    EXPECT_FALSE(refused.ok());
    return refused ? "" : refused.error().to_string();
  };
  EXPECT_EQ(refusal({0.5f, 0.25f}),
            "kv_cache: needs one scale above 0 for the keys of a layer with fp8; the file has 2");
  EXPECT_EQ(refusal({0.0f}),
            "kv_cache: needs one scale above 0 for the keys of a layer with fp8; it is 0");
}

}  // namespace
}  // namespace moracle::testing::kv_scales_test
