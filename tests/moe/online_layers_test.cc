// Tests one MoE layer quantized at load. Every backend gives the same result. The result equals
// that of a producer's file with the same values. The error matches the step size of the scheme.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors/safetensors.h"  // only to read the reference files
#include "checkpoint/safetensors_image.h"
#include "moe/layer_on_rows.h"
#include "moracle/moracle.h"
#include "paths.h"
#include "support/must.h"

namespace moracle::online_layers_test {
namespace {

std::string cut(const std::string& name) {
  return testing::golden_dir() + "/layers/" + name;
}

struct Reference {
  std::vector<float> input, want;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int64_t tokens = 0;
};

template <class T>
std::vector<T> values(const TensorView& view) {
  return {view.as<T>(), view.as<T>() + view.num_elements()};
}

Reference reference(const std::string& folder, const std::string& output) {
  const auto file =
      testing::must(testing::SafetensorsImage::open(folder + "/reference.safetensors"));
  const auto& tensors = file.tensors();
  return {values<float>(tensors.at("moe.input")), values<float>(tensors.at(output)),
          values<int32_t>(tensors.at("moe.topk_ids")),
          values<float>(tensors.at("moe.topk_weights")), tensors.at("moe.input").shape[0]};
}

// Layer 1 of a plain checkpoint, quantized to `scheme`, on the reference's input.
std::vector<float> run(const std::string& folder, const Scheme& scheme, const std::string& backend,
                       const Reference& reference) {
  const Checkpoint checkpoint = testing::must(Checkpoint::open(folder));
  DescribedWeights layer = testing::must(quantize(testing::must(checkpoint.moe_layer(1)), scheme));
  Request request;
  request.layer = layer.spec;
  request.max_num_tokens = reference.tokens;
  request.backend = backend;
  const Selection selection = select(request, Machine::here());
  FusedMoe moe = testing::must(FusedMoe::make(std::move(layer), selection, *open_device("cpu", 2)));
  EXPECT_EQ(moe.plan().layer.scheme, scheme);
  return testing::output_of(moe,
                            {reference.tokens, reference.input, reference.ids, reference.weights});
}

double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(got[i] - want[i], 2);
    size += std::pow(want[i], 2);
  }
  return std::sqrt(difference / size);
}

// GPT-OSS keeps all experts in one tensor, transposed and interleaved, with biases.
class OnlineLayers : public ::testing::TestWithParam<std::string> {};

TEST_P(OnlineLayers, EqualOnEveryBackendAndNearUnquantized) {
  const Reference floats = reference(cut(GetParam()), "moe.output_routed");
  for (const OnlineScheme& online : online_schemes()) {
    const auto cpu = run(cut(GetParam()), online.scheme, "cpu", floats),
               exact = run(cut(GetParam()), online.scheme, "reference", floats);
    EXPECT_LT(distance(cpu, exact), 2e-3) << online.name;
    // int8 has steps of 1/127 of the largest value of a row, e4m3 steps of 1/16 of the value
    // itself.
    const bool int8 = online.scheme.weight.dtype == DType::kI8;
    const double cost = distance(cpu, floats.want);
    EXPECT_LT(cost, int8 ? 0.03 : 0.06) << online.name;
    EXPECT_GT(cost, 1e-4) << online.name << ": nothing was quantized";
    std::printf("%s, %s: %.4f from the unquantized\n", GetParam().c_str(),
                std::string(online.name).c_str(), cost);
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, OnlineLayers, ::testing::Values("qwen3moe-bf16", "gptoss-bf16"),
                         [](const auto& folder) { return folder.param.substr(0, 4); });

// The cuts of the repository hold other experts of each file, so this needs the full checkpoints.
TEST(OnlineLayersOfProducers, MatchStoredOutputOfEqualFile) {
  const std::string root = testing::checkpoints_dir() + "/";
  if (!std::filesystem::exists(root + "qwen3moe-bf16")) GTEST_SKIP() << "no full checkpoints";
  for (const auto& [scheme, file] : {std::pair{"fp8-per-block", "qwen3moe-fp8-block128"},
                                     {"mxfp8", "qwen3moe-modelopt-mxfp8"}}) {
    const Reference stored = reference(root + file, "act.moe.output_routed");
    for (const char* backend : {"cpu", "reference"}) {
      const auto got = run(root + "qwen3moe-bf16", *parse_online_scheme(scheme), backend, stored);
      EXPECT_LT(distance(got, stored.want), 2e-3) << scheme << " on " << backend;
    }
  }
}

}  // namespace
}  // namespace moracle::online_layers_test
