// Tests non-float activations: only on request, and then in every layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/try.h"
#include "golden_model.h"
#include "support/model_words.h"

namespace moracle::activations_test {
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
  struct Logits {
    std::vector<float> plain, asked;
  };
  // Logits by the serving rows. `served` receives the choices.
  Result<Logits> with_and_without(ActivationPrecision activations, std::vector<Choice>& served) {
    ModelOptions options;
    options.threads = 2;
    MORACLE_TRY(Model plain, load(options));
    options.activations = activations;
    MORACLE_TRY(Model asked, load(options));
    Logits logits;
    MORACLE_TRY(logits.plain, all_logits(plain, ids_));
    MORACLE_TRY(logits.asked, all_logits(asked, ids_));
    served = asked.choices();
    return logits;
  }
  const std::vector<int32_t> ids_ = golden_reference(GetParam()).ids;
};

// Two ways to request the same scheme.
TEST_P(ActivationsOption, Int8OnInt8WeightsIsInt8W8A8) {
  for (const char* backend : {"auto", "cpu", "reference"}) {
    ModelOptions options;
    options.backend = testing::backend(backend);
    options.threads = 2;
    options.quantization = testing::quantization("int8-per-channel");
    auto direct = load(options);
    options.quantization = testing::quantization("int8-per-channel-weight-only");
    auto alone = load(options);
    options.activations = ActivationPrecision::kInt8;
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

// The file has quantized activations and the request has none: every layer runs, and is shown, as
// weight-only.
TEST_P(ActivationsOption, SixteenBitOnQuantizedActivationsIsWeightOnly) {
  const std::pair<const char*, const char*> pairs[] = {
      {"fp8-per-channel", "fp8-w8a16-channel"},
      {"fp8-per-block", "fp8-w8a16-block128x128"},
      {"mxfp8", "mxfp8-w8a16"},
      {"int8-per-channel", "int8-per-channel-weight-only"}};
  for (const auto& [with, without] : pairs) {
    SCOPED_TRACE(with);
    ModelOptions options;
    options.threads = 2;
    options.quantization = testing::quantization(without);
    auto direct = load(options);
    options.quantization = testing::quantization(with);
    auto stored = load(options);
    options.activations = ActivationPrecision::k16Bit;
    auto asked = load(options);
    ASSERT_TRUE(direct && stored && asked);
    ASSERT_EQ(asked->choices().size(), direct->choices().size());
    for (size_t i = 0; i < asked->choices().size(); ++i) {
      const Scheme& scheme = asked->choices()[i].selection.plan->layer.scheme;
      EXPECT_EQ(scheme, direct->choices()[i].selection.plan->layer.scheme);
      EXPECT_FALSE(scheme.activation);
    }
    const auto want = all_logits(*direct, ids_), got = all_logits(*asked, ids_);
    ASSERT_TRUE(want && got);
    EXPECT_EQ(*got, *want);
    EXPECT_NE(*all_logits(*stored, ids_), *want);
  }
}

TEST_P(ActivationsOption, Int8KeepsFloatWeights) {
  std::vector<Choice> served;
  const auto logits = with_and_without(ActivationPrecision::kInt8, served);
  ASSERT_TRUE(logits) << logits.error().to_string();
  EXPECT_EQ(logits->asked, logits->plain);
}

// Results stay near the default. They differ exactly where the plan says that the row uses the
// option.
TEST_P(ActivationsOption, Bf16IsNearFloats) {
  std::vector<Choice> served;
  const auto logits = with_and_without(ActivationPrecision::kBf16, served);
  ASSERT_TRUE(logits) << logits.error().to_string();
  EXPECT_LT(testing::relative_difference(logits->asked, logits->plain), 0.05);
  bool rounds = false;
  for (const Choice& choice : served) {
    const Plan& plan = *choice.selection.plan;
    EXPECT_TRUE(choice.selection.request.bf16_activations);
    rounds = rounds || plan.matrices[0].product_bits < 16;
  }
  EXPECT_EQ(logits->asked != logits->plain, rounds);
}

TEST(ActivationsOptionName, RejectsUnknownWord) {
  const auto refused = parse_activations("int4");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("activations"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("'int4'"));
}

INSTANTIATE_TEST_SUITE_P(Golden, ActivationsOption, ::testing::Values("qwen3_moe", "gpt_oss"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace moracle::activations_test
