// Other activations than floats: only when asked for, and then everywhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/try.h"
#include "golden_model.h"

namespace moracle {
namespace {

using testing::all_logits;
using testing::golden_folder;
using testing::golden_reference;
using ::testing::HasSubstr;

class ActivationsOption : public ::testing::TestWithParam<std::string> {
 protected:
  Result<Model> load(const ModelOptions& options) {
    MORACLE_TRY(const Checkpoint checkpoint, Checkpoint::open(golden_folder(GetParam())));
    return Model::load(checkpoint, options);
  }
  const std::vector<int32_t> ids_ = golden_reference(GetParam()).ids;
};

// The same scheme by two ways.
TEST_P(ActivationsOption, Int8OnInt8WeightsIsInt8W8A8) {
  for (const char* backend : {"auto", "cpu", "reference"}) {
    ModelOptions options;
    options.backend = backend;
    options.threads = 2;
    options.quantization = "int8-per-channel";
    auto direct = load(options);
    options.quantization = "int8-per-channel-weight-only";
    auto alone = load(options);
    options.activations = "int8";
    auto asked = load(options);
    ASSERT_TRUE(direct && alone && asked) << backend;
    for (size_t i = 0; i < asked->choices().size(); ++i) {
      EXPECT_EQ(asked->choices()[i].selection.plan->layer.scheme,
                direct->choices()[i].selection.plan->layer.scheme);
    }
    const auto want = all_logits(*direct, ids_), got = all_logits(*asked, ids_);
    ASSERT_TRUE(want && got);
    EXPECT_EQ(*got, *want) << backend;
    EXPECT_NE(*all_logits(*alone, ids_), *want) << backend;
  }
}

TEST_P(ActivationsOption, Int8LeavesFloatWeightsAlone) {
  ModelOptions options;
  options.threads = 2;
  auto plain = load(options);
  options.activations = "int8";
  auto asked = load(options);
  ASSERT_TRUE(plain && asked);
  EXPECT_EQ(*all_logits(*asked, ids_), *all_logits(*plain, ids_));
}

// Near the others, and with a plan that says so where a row makes use of it.
TEST_P(ActivationsOption, Bf16IsNearFloats) {
  ModelOptions options;
  options.threads = 2;
  auto plain = load(options);
  options.activations = "bf16";
  auto asked = load(options);
  ASSERT_TRUE(plain && asked);
  const auto want = all_logits(*plain, ids_), got = all_logits(*asked, ids_);
  ASSERT_TRUE(want && got);
  ASSERT_EQ(got->size(), want->size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < got->size(); ++i) {
    difference += std::fabs((*got)[i] - (*want)[i]);
    size += std::fabs((*want)[i]);
  }
  EXPECT_LT(difference, 0.05 * size);
  for (const Choice& choice : asked->choices()) {
    const Plan& plan = *choice.selection.plan;
    EXPECT_TRUE(choice.selection.request.bf16_activations);
    if (plan.backend->name == "cpu-amx") {
      EXPECT_EQ(plan.matrices[0].kernel.product_bits, 8);
    }
  }
}

TEST_P(ActivationsOption, IsKnownOrRefused) {
  ModelOptions options;
  options.activations = "int4";
  const auto refused = load(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--activations"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("'int4'"));
}

INSTANTIATE_TEST_SUITE_P(Golden, ActivationsOption, ::testing::Values("qwen3_moe", "gpt_oss"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace moracle
