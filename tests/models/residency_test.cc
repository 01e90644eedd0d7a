// Tests how 4-bit weights beside fp8 activations lie in memory: the choice, its reasons and sizes,
// and that folded models compute what packed ones do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "golden_model.h"
#include "logit_bounds.h"
#include "models/decoder/model_state.h"
#include "models/explain.h"
#include "models/host_experts/place_experts.h"
#include "models/residency.h"
#include "support/model_words.h"

namespace moracle::residency_test {
namespace {

using ::testing::HasSubstr;
using testing::must;
using enum WeightResidency;

const std::string kInt4 = testing::models_dir() + "/qwen3moe-gptq-int4-g128";

Checkpoint opened(const std::string& folder = kInt4) {
  return must(Checkpoint::open(folder));
}

ModelOptions options_for(WeightResidency weights, const char* device = "cuda:0") {
  ModelOptions options;
  options.device = testing::device(device);
  options.activations = ActivationPrecision::kFp8;
  options.weights = weights;
  options.threads = 2;
  return options;
}

Machine h200() {
  return must(Machine::find("h200"));
}

std::string scheme_of(const ModelPlan& plan, std::string_view part) {
  for (const Choice& choice : plan.choices)
    if (choice.part == part) return choice.selection.plan->layer.scheme_name();
  return "";
}

TEST(WeightResidencyChoice, FoldedPlanHasFp8WeightsAndSizesOfBoth) {
  const Checkpoint checkpoint = opened();
  const ModelPlan packed = must(plan(checkpoint, options_for(kPacked), h200()));
  const ModelPlan folded = must(plan(checkpoint, options_for(kFolded), h200()));
  EXPECT_EQ(scheme_of(packed, "experts"), "int4-w4afp8-g128");
  EXPECT_EQ(scheme_of(folded, "experts"), "fp8-w8a8-g128-token");
  EXPECT_EQ(scheme_of(folded, "attention qkv"), "fp8-w8a8-g128-token");
  EXPECT_EQ(scheme_of(folded, "router"), scheme_of(packed, "router"));
  ASSERT_TRUE(packed.residency && folded.residency);
  EXPECT_EQ(packed.residency->chosen, kPacked);
  EXPECT_EQ(folded.residency->chosen, kFolded);
  for (const auto& residency : {packed.residency, folded.residency}) {
    EXPECT_EQ(residency->packed_bytes, packed.weight_bytes);
    EXPECT_EQ(residency->folded_bytes, folded.weight_bytes);
    EXPECT_EQ(residency->schemes, "int4-w4afp8-g128 as fp8-w8a8-g128-token");
  }
  EXPECT_GT(folded.weight_bytes, packed.weight_bytes);
}

TEST(WeightResidencyChoice, ExplainHasChoiceOfPlan) {
  const Checkpoint checkpoint = opened();
  for (const WeightResidency weights : {kPacked, kFolded, kAuto}) {
    const ModelPlan planned = must(plan(checkpoint, options_for(weights), h200()));
    const ModelExplanation explained = must(explain(checkpoint, options_for(weights), h200()));
    ASSERT_TRUE(planned.residency && explained.residency);
    EXPECT_EQ(explained.residency->chosen, planned.residency->chosen);
    EXPECT_EQ(explained.residency->folded_bytes, planned.residency->folded_bytes);
    EXPECT_EQ(explained.residency->reason, planned.residency->reason);
  }
}

TEST(WeightResidencyChoice, AutoFoldsIfFreeMemoryHoldsModelAndCaches) {
  const Checkpoint checkpoint = opened();
  const ModelPlan folded = must(plan(checkpoint, options_for(kFolded), h200()));
  const int64_t context = must(describe(checkpoint)).spec.max_context;
  const int64_t needed =
      folded.total_bytes() + reserved_cache_bytes(folded, options_for(kFolded), context);
  Machine machine = h200();
  int64_t& memory = machine.gpus[0].memory_bytes;
  memory = needed + (int64_t{512} << 20);  // the reserve of free_memory
  ASSERT_EQ(must(free_memory({Platform::kCuda, 0}, machine)), needed);
  const ModelPlan fits = must(plan(checkpoint, options_for(kAuto), machine));
  EXPECT_EQ(fits.residency->chosen, kFolded);
  EXPECT_EQ(scheme_of(fits, "experts"), "fp8-w8a8-g128-token");
  --memory;
  const ModelPlan packed = must(plan(checkpoint, options_for(kAuto), machine));
  EXPECT_EQ(packed.residency->chosen, kPacked);
  EXPECT_EQ(scheme_of(packed, "experts"), "int4-w4afp8-g128");
  EXPECT_EQ(packed.residency->folded_bytes, folded.weight_bytes);
  EXPECT_THAT(packed.residency->reason, HasSubstr(std::to_string(needed)));
  EXPECT_THAT(packed.residency->reason, HasSubstr(std::to_string(needed - 1) + " are free"));
}

// Each case is an error for kFolded, and the reason for packed weights with kAuto.
TEST(WeightResidencyChoice, RefusesWhatGainsNothing) {
  struct Case {
    std::string what, folder, machine, reason;
    std::function<void(ModelOptions&)> change;
  };
  const std::string plain = testing::golden_folder("qwen3_moe");
  const Case cases[] = {
      {"CPU", kInt4, "xeon-amx", "the device is cpu",
       [](ModelOptions& o) { o.device = testing::device("cpu"); }},
      {"OpenCL", kInt4, "arc-b580", "the device is opencl:0",
       [](ModelOptions& o) { o.device = testing::device("opencl:0"); }},
      {"Ampere", kInt4, "a100", "would run on cuda-sm80", [](ModelOptions&) {}},
      {"batch-invariant", kInt4, "h200", "would run on cuda-sm90",
       [](ModelOptions& o) { o.deterministic = true; }},
      {"few tokens", kInt4, "h200", "would run on cuda-sm90",
       [](ModelOptions& o) { o.max_num_tokens = 4; }},
      {"placement", kInt4, "h200", "the device's memory is limited",
       [](ModelOptions& o) { o.device_memory = int64_t{1} << 30; }},
      {"float activations", kInt4, "h200", "no layer of the model has both",
       [](ModelOptions& o) { o.activations = ActivationPrecision::kStored; }},
      {"int8 activations", kInt4, "h200", "no layer of the model has both",
       [](ModelOptions& o) { o.activations = ActivationPrecision::kInt8; }},
      {"bf16 weights", plain, "h200", "no layer of the model has both", [](ModelOptions&) {}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const Checkpoint checkpoint = opened(one.folder);
    const Machine machine = must(Machine::find(one.machine));
    ModelOptions options = options_for(kFolded);
    one.change(options);
    const auto refused = plan(checkpoint, options, machine);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::kUnsupported);
    EXPECT_EQ(refused.error().place, "weights");
    EXPECT_THAT(refused.error().fact, HasSubstr(one.reason));
    EXPECT_FALSE(explain(checkpoint, options, machine));
    options.weights = kAuto;
    const ModelPlan packed = must(plan(checkpoint, options, machine));
    ASSERT_TRUE(packed.residency);
    EXPECT_EQ(packed.residency->chosen, kPacked);
    EXPECT_THAT(packed.residency->reason, HasSubstr(one.reason));
    options.weights = kPacked;
    EXPECT_EQ(packed.weight_bytes, must(plan(checkpoint, options, machine)).weight_bytes);
  }
}

TEST(WeightResidencyChoice, LoadingRefusesDeviceWithoutGain) {
  const auto refused = Model::load(opened(), options_for(kFolded, "cpu"));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().fact, HasSubstr("the device is cpu"));
  const Model model = must(Model::load(opened(), options_for(kAuto, "cpu")));
  ASSERT_TRUE(model.residency());
  EXPECT_EQ(model.residency()->chosen, kPacked);
}

std::vector<float> reference_logits(WeightResidency weights) {
  Description description = must(describe(opened(), changes_of(options_for(weights))));
  ModelOptions options = options_for(kPacked, "cpu");
  options.backend = testing::backend("reference");
  Model model = must(ModelAccess::load(std::move(description), options, {}, 0));
  std::vector<int32_t> ids(40);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(7 * i % 200);
  return must(testing::all_logits(model, ids));
}

// Folded weights have the values of packed ones, and the reference computes with values in double.
TEST(FoldedModel, HasBitsOfPackedModelOnReference) {
  EXPECT_EQ(reference_logits(kFolded), reference_logits(kPacked));
}

// On a GPU: loading, reloading, and the numbers of packed weights.
TEST(CudaFoldedModel, IsNearPackedModelAndReloads) {
  if (const auto device = open_device("cuda"); !device) GTEST_SKIP() << device.error().to_string();
  const Checkpoint checkpoint = opened();
  if (const auto planned = plan(checkpoint, options_for(kFolded)); !planned)
    GTEST_SKIP() << planned.error().to_string();
  Model packed = must(Model::load(checkpoint, options_for(kPacked)));
  Model folded = must(Model::load(checkpoint, options_for(kFolded)));
  ASSERT_TRUE(folded.residency());
  EXPECT_EQ(folded.residency()->chosen, kFolded);
  EXPECT_EQ(folded.weight_bytes(), folded.residency()->folded_bytes);
  EXPECT_EQ(packed.weight_bytes(), folded.residency()->packed_bytes);
  for (const size_t tokens : {1, 40, 400}) {
    std::vector<int32_t> ids(tokens);
    for (size_t i = 0; i < tokens; ++i) ids[i] = static_cast<int32_t>(7 * i % 200);
    const std::vector<float> want = must(testing::all_logits(packed, ids));
    const std::vector<float> got = must(testing::all_logits(folded, ids));
    const auto count = static_cast<int64_t>(tokens);
    EXPECT_LT(testing::relative_difference(got, want),
              testing::logit_bound(packed.choices(), count) +
                  testing::logit_bound(folded.choices(), count))
        << tokens;
    ASSERT_TRUE(folded.reload(checkpoint));
    EXPECT_EQ(must(testing::all_logits(folded, ids)), got) << tokens;
  }
}

}  // namespace
}  // namespace moracle::residency_test
