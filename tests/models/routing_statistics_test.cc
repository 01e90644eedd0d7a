// Counting the tokens that chose each expert, and files of these counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <numeric>

#include "golden_model.h"
#include "models/decoder/model_state.h"
#include "support/model_words.h"

namespace moracle::routing_statistics_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::golden_folder;
using testing::golden_model;
using testing::golden_reference;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;
using testing::SafetensorsImage;
using testing::SyntheticCheckpoint;
using testing::TemporaryFolder;
using Counts = std::vector<int64_t>;

constexpr const char* kModel = "qwen3_moe";
constexpr int64_t kLayer = 0;  // layer 1 is dense
constexpr const char* kGate = "model.layers.0.mlp.gate.weight";

Model counting_model(const Checkpoint& checkpoint) {
  ModelOptions options;
  options.backend = testing::backend("cpu");
  options.threads = 1;
  options.count_routing = true;
  return *Model::load(checkpoint, options);
}

float bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// The chosen experts, computed anew from the router's input and weights.
Counts counts_of(const Matrix& x, const TensorView& gate, int64_t top_k) {
  const int64_t num_experts = gate.shape[0];
  Counts counts(num_experts);
  for (int64_t row = 0; row < x.rows; ++row) {
    const float* const input = static_cast<const float*>(x.data) + row * x.stride;
    std::vector<double> logits(num_experts);
    for (int64_t expert = 0; expert < num_experts; ++expert)
      for (int64_t k = 0; k < x.cols; ++k)
        logits[expert] += double{input[k]} * bf16(gate.as<uint16_t>()[expert * x.cols + k]);
    std::vector<int64_t> order(num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
    for (int64_t i = 0; i < top_k; ++i) ++counts[order[i]];
  }
  return counts;
}

TEST(RoutingStatistics, CountTheChoicesOfTheRouter) {
  const Checkpoint checkpoint = *Checkpoint::open(golden_folder(kModel));
  const auto file = SafetensorsImage::open(golden_folder(kModel) + "/model.safetensors");
  const TensorView gate = file->tensors().at(kGate);
  ASSERT_EQ(gate.dtype, DType::kBF16);
  Model model = counting_model(checkpoint);
  Counts expected;
  ModelAccess::state(model).observer.on_output = [&](StepOutput output, int64_t layer,
                                                     const Matrix& values) -> Status {
    if (output == StepOutput::kPostNorm && layer == kLayer)
      expected = counts_of(values, gate, outline(checkpoint)->top_k);
    return {};
  };
  const std::vector<int32_t> ids = golden_reference(kModel).ids;
  ASSERT_TRUE(testing::all_logits(model, ids));
  const RoutingStatistics once = *model.routing_statistics();
  EXPECT_EQ(once.tokens.at(kLayer), expected);
  EXPECT_EQ(once.architecture, "Qwen3MoeForCausalLM");
  EXPECT_EQ(once.num_layers, checkpoint.num_layers());
  // Without a look at the outputs the routers work in another way. Counts add up until a reload.
  ModelAccess::state(model).observer.on_output = {};
  ASSERT_TRUE(testing::all_logits(model, ids));
  for (size_t expert = 0; expert < expected.size(); ++expert)
    EXPECT_EQ(model.routing_statistics()->tokens.at(kLayer)[expert], 2 * expected[expert]);
  ASSERT_TRUE(model.reload(checkpoint));
  EXPECT_THAT(model.routing_statistics()->tokens.at(kLayer), Each(0));
}

TEST(RoutingStatistics, HoldLayersWithExpertsOfEveryModel) {
  for (const std::string& name : testing::golden_models()) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = *Checkpoint::open(golden_folder(name));
    Model model = counting_model(checkpoint);
    const std::vector<int32_t> ids = golden_reference(name).ids;
    ASSERT_TRUE(testing::all_logits(model, ids));
    const RoutingStatistics statistics = *model.routing_statistics();
    const std::vector<int64_t> stored = checkpoint.moe_layers();
    ASSERT_EQ(statistics.tokens.size(), stored.size());
    size_t number = 0;  // LongCat-Flash has two layers of the model in one of the files
    for (const auto& [layer, tokens] : statistics.tokens) {
      EXPECT_LT(layer, statistics.num_layers);
      const LayerSpec spec = checkpoint.moe_layer(stored[number++])->spec;
      EXPECT_EQ(static_cast<int64_t>(tokens.size()), spec.num_experts);
      const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0}),
                    choices = spec.top_k * static_cast<int64_t>(ids.size());
      // Its experts that return their input are not counted.
      if (name == "longcat_flash")
        EXPECT_THAT(all, AllOf(Gt(0), Lt(choices)));
      else
        EXPECT_EQ(all, choices);
    }
  }
}

TEST(RoutingStatistics, RouterWithEqualLogitsChoosesTheFirstExperts) {
  SyntheticCheckpoint zero = golden_model(kModel);
  auto& bytes = zero.tensors.at(kGate).bytes;
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  const Checkpoint checkpoint = *zero.open();
  Model model = counting_model(checkpoint);
  const std::vector<int32_t> ids = golden_reference(kModel).ids;
  ASSERT_TRUE(testing::all_logits(model, ids));
  const Counts tokens = model.routing_statistics()->tokens.at(kLayer);
  const int64_t top_k = outline(checkpoint)->top_k;
  for (int64_t expert = 0; expert < static_cast<int64_t>(tokens.size()); ++expert)
    EXPECT_EQ(tokens[expert], expert < top_k ? static_cast<int64_t>(ids.size()) : 0);
}

TEST(RoutingStatistics, AreRefusedWithoutCounting) {
  const Model model = *Model::load(*Checkpoint::open(golden_folder(kModel)), {.threads = 1});
  EXPECT_THAT(model.routing_statistics().error().to_string(), HasSubstr("count_routing"));
}

std::string error_of_file(const std::string& content) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/load.json";
  std::ofstream(path) << content;
  const auto read = RoutingStatistics::open(path);
  return read ? "" : read.error().to_string();
}

TEST(RoutingStatistics, FileGivesTheSameCounts) {
  const RoutingStatistics written{"Some", 3, {{0, {1, 2}}, {2, {3, 0, 5}}}, ""};
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/load.json";
  std::ofstream(path) << written.json();
  const RoutingStatistics read = *RoutingStatistics::open(path);
  EXPECT_EQ(read.architecture, "Some");
  EXPECT_EQ(read.num_layers, 3);
  EXPECT_EQ(read.tokens, written.tokens);
  EXPECT_EQ(read.file, path);
}

TEST(RoutingStatistics, FilesWithOtherContentAreRefusedWithThePlace) {
  EXPECT_THAT(error_of_file("{}"), HasSubstr("format"));
  EXPECT_THAT(error_of_file("[1]"), HasSubstr("needs \"moracle routing statistics 1\""));
  const auto with_layers = [](const std::string& layers) {
    return error_of_file(R"({"format": "moracle routing statistics 1", "architecture": "A",
                             "num_layers": 2, "layers": )" +
                         layers + "}");
  };
  EXPECT_EQ(with_layers("[]"), "");
  EXPECT_THAT(with_layers("3"), HasSubstr("layers"));
  EXPECT_THAT(with_layers(R"([{"layer": 2, "num_experts": 1, "tokens": [1]}])"),
              HasSubstr("layers[0].layer"));
  EXPECT_THAT(with_layers(R"([{"layer": 1, "num_experts": 2, "tokens": [1, -1]}])"),
              HasSubstr("layers[0].tokens[1]"));
  EXPECT_THAT(with_layers(R"([{"layer": 1, "num_experts": 2, "tokens": [1, 0.5]}])"),
              HasSubstr("layers[0].tokens[1]"));
  EXPECT_THAT(with_layers(R"([{"layer": 1, "num_experts": 2, "tokens": [1]}])"),
              HasSubstr("a number for each of 2 experts; there are 1"));
  const std::string twice = R"({"layer": 1, "num_experts": 1, "tokens": [1]})";
  EXPECT_THAT(with_layers("[" + twice + "," + twice + "]"), HasSubstr("each layer once"));
}

std::string error_of_plan(const RoutingStatistics& statistics) {
  ModelOptions options;
  options.parallel.ep_size = 2;
  options.measured_load = std::make_shared<RoutingStatistics>(statistics);
  const auto planned = plan(*Checkpoint::open(golden_folder(kModel)), options);
  return planned ? "" : planned.error().to_string();
}

TEST(RoutingStatistics, OfAnotherModelAreRefused) {
  Model model = counting_model(*Checkpoint::open(golden_folder(kModel)));
  const RoutingStatistics good = *model.routing_statistics();
  EXPECT_EQ(error_of_plan(good), "");
  RoutingStatistics bad = good;
  bad.file = "load.json";
  bad.architecture = "MixtralForCausalLM";
  EXPECT_THAT(error_of_plan(bad), HasSubstr("load.json: architecture: needs Qwen3MoeForCausalLM"));
  bad = good;
  bad.num_layers += 1;
  EXPECT_THAT(error_of_plan(bad), HasSubstr("num_layers"));
  bad = good;
  bad.tokens.erase(kLayer);
  EXPECT_THAT(error_of_plan(bad), HasSubstr("layer 0, which has experts; it is missing"));
  bad = good;
  bad.tokens[kLayer].push_back(0);
  EXPECT_THAT(error_of_plan(bad), HasSubstr("experts, as in the model"));
  bad = good;
  bad.tokens[kLayer][0] = -1;
  EXPECT_THAT(error_of_plan(bad), HasSubstr("expert 0 has -1"));
  bad = good;
  bad.tokens[77] = {1};
  EXPECT_THAT(error_of_plan(bad), HasSubstr("layer 77"));
}

}  // namespace
}  // namespace moracle::routing_statistics_test
