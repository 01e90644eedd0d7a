// Tests whole models of every architecture, quantized at load: fused experts, latent attention,
// shared experts, dense layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/text.h"
#include "checkpoint/online/online.h"
#include "checkpoint/state.h"
#include "models/golden_model.h"
#include "models/logit_bounds.h"
#include "paths.h"
#include "quant/codec.h"
#include "quant/quantize_weight.h"
#include "support/model_words.h"
#include "support/sample.h"

namespace moracle::online_architectures_test {
namespace {

ThreadPool& pool() {
  static ThreadPool threads(3);
  return threads;
}

using testing::all_logits;
using testing::golden_model;
using testing::golden_reference;
using testing::GoldenReference;
using testing::relative_difference;
using testing::SyntheticCheckpoint;

class OnlineArchitectures : public ::testing::TestWithParam<std::string> {
 protected:
  const SyntheticCheckpoint floats_ = golden_model(GetParam());
  const GoldenReference want_ = golden_reference(GetParam());

  /// Files hold experts in one tensor, which these tests do not round or write.
  static std::string without_fused_experts() {
    if (!testing::has_experts(GetParam())) return "";
    for (const char* family :
         {"gpt_oss", "llama4", "gemma4", "mistral4", "granite_moe_swa", "minimax_m3"})
      if (GetParam().starts_with(family)) return "*.experts.*=none,";
    return GetParam().starts_with("granite_moe") ? "*sparse_moe.*put_linear=none," : "";
  }
  Result<std::vector<float>> logits(const SyntheticCheckpoint& written, const std::string& map,
                                    const std::string& backend) {
    MORACLE_TRY(const Checkpoint checkpoint, written.open());
    ModelOptions options;
    options.quantization = testing::quantization(map);
    options.backend = testing::backend(backend);
    options.threads = 2;
    MORACLE_TRY(Model model, Model::load(checkpoint, options));
    return all_logits(model, want_.ids);
  }
};

TEST_P(OnlineArchitectures, PlanMatchesLoadWithEveryLinearLayerQuantized) {
  const auto checkpoint = floats_.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const std::set<std::string> left = {"router",
                                      "output",
                                      "shared expert gate",
                                      "indexer q",
                                      "indexer k",
                                      "indexer weights",
                                      "residual down",
                                      "residual up",
                                      "residual inject",
                                      "indexer pool gates"};
  testing::Sample sample(GetParam());
  for (const OnlineScheme& online : online_schemes()) {
    if (!sample.takes()) continue;
    ModelOptions options;
    options.quantization = testing::quantization(online.name);
    options.threads = 2;
    const auto planned = plan(*checkpoint, options);
    ASSERT_TRUE(planned) << online.name << ": " << planned.error().to_string();
    const auto model = Model::load(*checkpoint, options);
    ASSERT_TRUE(model) << online.name << ": " << model.error().to_string();
    EXPECT_EQ(planned->weight_bytes, model->weight_bytes()) << online.name;
    ASSERT_EQ(planned->choices.size(), model->choices().size());
    for (size_t i = 0; i < planned->choices.size(); ++i) {
      const Choice &before = planned->choices[i], &after = model->choices()[i];
      EXPECT_EQ(describe(*before.selection.plan), describe(*after.selection.plan));
      const Scheme& scheme = after.selection.plan->layer.scheme;
      EXPECT_EQ(scheme == online.scheme, !left.contains(after.part))
          << after.part << " is " << name(scheme);
    }
  }
}

// The weights of these tiny models are random, so every value matters. After rounding a router
// often chooses other experts, and an indexer other positions. Logits of an unrelated model would
// be √2 away.
TEST_P(OnlineArchitectures, EverySchemeStaysNearUnquantized) {
  testing::Sample sample(GetParam());
  for (const OnlineScheme& online : online_schemes()) {
    if (!sample.takes()) continue;
    const auto cpu = logits(floats_, std::string(online.name), "cpu"),
               exact = logits(floats_, std::string(online.name), "reference");
    ASSERT_TRUE(cpu) << online.name << ": " << cpu.error().to_string();
    ASSERT_TRUE(exact) << online.name << ": " << exact.error().to_string();
    const double apart = relative_difference(*cpu, *exact),
                 cost = relative_difference(*exact, want_.logits);
    std::printf("%s, %s: %.2g between backends, %.4f from the unquantized\n", GetParam().c_str(),
                std::string(online.name).c_str(), apart, cost);
    const bool int8 = online.scheme.weight.dtype == DType::kI8;
    const bool sparse = GetParam().ends_with("_sparse") || GetParam().starts_with("glm5_next") ||
                        GetParam().starts_with("qwen4_exp");
    const double rounding = sparse ? 4 * testing::kCloseInF32 : 5e-6;
    EXPECT_LT(apart, online.scheme.activation ? 0.05 : rounding) << online.name;
    // A recurrent state keeps the rounding of earlier tokens.
    const bool delta =
        GetParam().starts_with("kimi_linear") || GetParam().starts_with("bailing_hybrid");
    EXPECT_LT(cost, sparse ? 0.8 : int8 ? (delta ? 0.3 : 0.1) : 0.6) << online.name;
    EXPECT_GT(cost, 1e-4) << online.name << ": nothing was quantized";
  }
}

/// The checkpoint with its weights rounded by the map's schemes, as f32.
SyntheticCheckpoint rounded(SyntheticCheckpoint floats, const std::string& map) {
  const auto checkpoint = floats.open();
  const auto choice = OnlineChoice::make(*checkpoint, *QuantizationMap::parse(map));
  for (size_t i = 0; i < choice->modules().size(); ++i) {
    const LinearModule& module = choice->modules()[i];
    const std::optional<Scheme> scheme = choice->scheme(i);
    if (!scheme || module.fused) continue;
    const Result<TensorData> tensor = checkpoint->state().tensors.read(module.tensor);
    if (!tensor) ADD_FAILURE() << tensor.error().to_string();
    if (!tensor) return floats;
    const TensorView& view = tensor->view;
    CanonicalMatrix matrix;
    matrix.n = view.shape[0];
    matrix.k = view.shape[1];
    matrix.key = QuantKey{view.dtype};
    matrix.codes = {view.data, view.num_bytes()};
    const auto quantized = quantize_weight(matrix, scheme->weight, pool());
    std::vector<double> row(matrix.k);
    std::vector<float> values;
    for (int64_t r = 0; r < matrix.n; ++r) {
      dequantize_row(*quantized, r, row.data());
      values.insert(values.end(), row.begin(), row.end());
    }
    floats.add(module.tensor, DType::kF32, view.shape, values);
  }
  return floats;
}

// Weight-only: the logits equal those of an unquantized file with the rounded values.
// Online.QuantizesFusedExpertsAsGateRowsThenUpRows covers fused tensors.
TEST_P(OnlineArchitectures, MatchDequantizedWeights) {
  testing::Sample sample(GetParam());
  for (const OnlineScheme& online : online_schemes()) {
    if (online.scheme.activation || !sample.takes()) continue;
    const std::string map = str(without_fused_experts(), online.name);
    const auto online_logits = logits(floats_, map, "reference"),
               file = logits(rounded(floats_, map), "", "reference");
    ASSERT_TRUE(online_logits) << online.name << ": " << online_logits.error().to_string();
    ASSERT_TRUE(file) << online.name << ": " << file.error().to_string();
    EXPECT_LT(relative_difference(*online_logits, *file), testing::kCloseInF32) << online.name;
    EXPECT_GT(relative_difference(*file, want_.logits), 1e-4) << online.name;
  }
}

// A file written in the scheme loads as the same model, for every kind of attention.
TEST_P(OnlineArchitectures, MatchWrittenCheckpoint) {
  const testing::TemporaryFolder folder;
  const std::string from = folder.path() + "/floats", to = folder.path() + "/quantized";
  std::filesystem::create_directory(from);
  ASSERT_TRUE(floats_.write(from).ok());
  testing::Sample sample(GetParam());
  for (const OnlineScheme& online : online_schemes()) {
    if (online.scheme.weight.scale_dtype == DType::kF8E8M0) continue;  // K is no multiple of 32
    if (!sample.takes()) continue;
    const std::string map = str(without_fused_experts(), std::string(online.name));
    const auto report = quantize(*Checkpoint::open(from), *QuantizationMap::parse(map), to);
    ASSERT_TRUE(report) << online.name << ": " << report.error().to_string();
    const auto written = Checkpoint::open(to);
    std::filesystem::remove_all(to);
    ASSERT_TRUE(written) << online.name << ": " << written.error().to_string();
    auto model = Model::load(*written, {.threads = 2});
    ASSERT_TRUE(model) << online.name << ": " << model.error().to_string();
    const auto read = all_logits(*model, want_.ids), online_logits = logits(floats_, map, "auto");
    ASSERT_TRUE(read && online_logits);
    EXPECT_EQ(*read, *online_logits) << online.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, OnlineArchitectures,
                         ::testing::ValuesIn(testing::sample_of(testing::golden_models(),
                                                                "OnlineArchitectures")),
                         [](const auto& param) { return param.param; });
INSTANTIATE_TEST_SUITE_P(Compressed, OnlineArchitectures,
                         ::testing::Values("glm5_next_pools", "qwen4_exp"),
                         [](const auto& param) { return param.param; });

// Only the pattern lm_head quantizes the output layer: alone, and tied to the embedding, too.
TEST_P(OnlineArchitectures, OutputLayerAloneStaysNearUnquantized) {
  const auto checkpoint = floats_.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ModelOptions options;
  options.quantization = testing::quantization("lm_head=int8-per-channel-weight-only");
  options.threads = 2;
  const auto planned = plan(*checkpoint, options);
  ASSERT_TRUE(planned) << planned.error().to_string();
  auto model = Model::load(*checkpoint, options);
  ASSERT_TRUE(model) << model.error().to_string();
  EXPECT_EQ(planned->weight_bytes, model->weight_bytes());
  for (const Choice& choice : model->choices()) {
    const Scheme& scheme = choice.selection.plan->layer.scheme;
    EXPECT_EQ(scheme == Scheme{kInt8StaticChannelSym}, choice.part == "output")
        << choice.part << " is " << name(scheme);
  }
  const auto got = all_logits(*model, want_.ids);
  ASSERT_TRUE(got) << got.error().to_string();
  const double cost = relative_difference(*got, want_.logits);
  EXPECT_GT(cost, 1e-4) << "nothing was quantized";
  EXPECT_LT(cost, 0.02);
}

// ---- quantized sources ----

TEST(OnlineQuantized, OutputLayerOfQuantizedModelMayBeQuantized) {
  const auto checkpoint = Checkpoint::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128");
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  ModelOptions options;
  const auto before = plan(*checkpoint, options);
  ASSERT_TRUE(before) << before.error().to_string();
  options.quantization = testing::quantization("lm_head=int8-per-channel-weight-only");
  const auto after = plan(*checkpoint, options);
  ASSERT_TRUE(after) << after.error().to_string();
  EXPECT_LT(after->weight_bytes, before->weight_bytes);
  ASSERT_EQ(after->choices.size(), before->choices.size());
  for (size_t i = 0; i < after->choices.size(); ++i) {
    const Scheme &old = before->choices[i].selection.plan->layer.scheme,
                 &now = after->choices[i].selection.plan->layer.scheme;
    EXPECT_EQ(now == old, after->choices[i].part != "output") << after->choices[i].part;
  }
}

TEST(OnlineRefused, QuantizedModelsBeforeWeightsAreRead) {
  std::vector<std::string> folders = {testing::models_dir() + "/qwen3moe-gptq-int4-g128"};
  for (const char* stored : {"gptoss-mxfp4", "dsv3-fp8-block128"}) {
    const std::string folder = testing::checkpoints_dir() + "/" + stored;
    if (std::filesystem::exists(folder)) folders.push_back(folder);
  }
  for (const std::string& folder : folders) {
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const std::string scheme =
        name(checkpoint->moe_layer(checkpoint->moe_layers()[0])->spec.scheme);
    for (const OnlineScheme& online : online_schemes()) {
      ModelOptions options;
      options.quantization = testing::quantization(online.name);
      const auto planned = plan(*checkpoint, options);
      ASSERT_FALSE(planned) << folder << ", " << online.name;
      EXPECT_EQ(planned.error().kind, ErrorKind::kUnsupported);
      EXPECT_THAT(planned.error().to_string(),
                  ::testing::AllOf(::testing::HasSubstr(folder), ::testing::HasSubstr(".experts"),
                                   ::testing::HasSubstr("the file has " + scheme)));
      const auto loaded = Model::load(*checkpoint, options);
      ASSERT_FALSE(loaded);
      EXPECT_EQ(loaded.error().to_string(), planned.error().to_string());
    }
  }
}

}  // namespace
}  // namespace moracle::online_architectures_test
