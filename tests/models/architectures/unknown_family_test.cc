// Tests checkpoints of families that src/models/families does not describe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "models/description.h"
#include "models/explain.h"
#include "moracle/moe.h"
#include "support/model_words.h"
#include "support/must.h"

namespace moracle::unknown_family_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::must;
using ::testing::Not;
using testing::SyntheticCheckpoint;

/// A family that no file describes: one intermediate size, no scoring function.
SyntheticCheckpoint unheard() {
  SyntheticCheckpoint written = SyntheticCheckpoint::plain();
  written.config["architectures"] = {"UnheardMoeForCausalLM"};
  written.config["intermediate_size"] = written.config["moe_intermediate_size"];
  for (const char* key : {"moe_intermediate_size", "norm_topk_prob"}) written.config.erase(key);
  return written;
}

TEST(UnknownFamily, ExpertsAreReadUnderUsualNamesAndKeys) {
  const auto checkpoint = unheard().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto known = SyntheticCheckpoint::plain().open();
  ASSERT_TRUE(known) << known.error().to_string();
  const auto experts = checkpoint->moe_layer(0), same = known->moe_layer(0);
  ASSERT_TRUE(experts) << experts.error().to_string();
  ASSERT_TRUE(same) << same.error().to_string();
  EXPECT_EQ(experts->spec.intermediate_size, same->spec.intermediate_size);
  EXPECT_EQ(experts->spec.num_experts, same->spec.num_experts);
}

TEST(UnknownFamily, RoutingIsUnknownDespiteConfigKeys) {
  SyntheticCheckpoint written = unheard();
  for (const bool with_keys : {false, true}) {
    if (with_keys) {
      written.config["scoring_func"] = "sigmoid";
      written.config["norm_topk_prob"] = true;
    }
    const auto checkpoint = written.open();
    ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
    const auto experts = checkpoint->moe_layer(0);
    ASSERT_TRUE(experts) << experts.error().to_string();
    EXPECT_EQ(experts->spec.routing, Routing{.score = Score::kUnknown});
    EXPECT_THAT(describe(experts->spec), HasSubstr("routing unknown"));
  }
}

TEST(UnknownFamily, FusedMoeNeedsTheRoutingFromTheCaller) {
  const auto checkpoint = unheard().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const Machine machine = Machine::here();
  const auto device = must(open_device("cpu", 1));
  auto experts = must(checkpoint->moe_layer(0));
  const auto refused =
      FusedMoe::make(must(checkpoint->moe_layer(0)),
                     select({.layer = experts.spec, .platform = Platform::kCpu}, machine), device);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(refused.error().to_string(), AllOf(HasSubstr("model.layers.0.mlp.experts"),
                                                 HasSubstr("DescribedWeights::spec.routing")));

  experts.spec.routing = {.score = Score::kSigmoid, .renormalize = true};
  const Selection selection = select({.layer = experts.spec, .platform = Platform::kCpu}, machine);
  const auto made = FusedMoe::make(std::move(experts), selection, device);
  EXPECT_TRUE(made) << made.error().to_string();
}

TEST(UnknownFamily, DescriptionNamesAssumedAndUnknownSettings) {
  const auto checkpoint = unheard().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto description = describe(*checkpoint);
  ASSERT_FALSE(description);
  EXPECT_EQ(description.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(
      description.error().to_string(),
      AllOf(HasSubstr("UnheardMoeForCausalLM"),
            HasSubstr("routing unknown, so the caller must give it"),
            HasSubstr("assumptions, because the architecture is unknown"),
            HasSubstr("intermediate_size is the size of the experts"), Not(HasSubstr("softmax"))));
}

TEST(UnknownFamily, ExplainStillChoosesBackendsForTheExperts) {
  const auto checkpoint = unheard().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto explanation = explain(*checkpoint, {}, Machine::here(), {});
  ASSERT_TRUE(explanation) << explanation.error().to_string();
  ASSERT_FALSE(explanation->choices.empty());
  EXPECT_THAT(moracle::explain(explanation->choices[0].selection), HasSubstr("routing unknown"));
  EXPECT_THAT(explanation->not_runnable,
              HasSubstr("assumptions, because the architecture is unknown"));
}

TEST(UnknownFamily, ExplainNamesTheTensorsItSearchedWhenItFindsNoExperts) {
  SyntheticCheckpoint written = unheard();
  for (const auto& [name, tensor] : SyntheticCheckpoint::plain().tensors) {
    const size_t at = name.find(".mlp.experts.");
    if (at != std::string::npos)
      written.rename(name, name.substr(0, at) + ".ffn.units." + name.substr(at + 13));
  }
  const auto checkpoint = written.open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  for (const char* backend : {"auto", "*=reference"}) {
    const auto explanation =
        explain(*checkpoint, {.backend = testing::backend(backend)}, Machine::here(), {});
    ASSERT_FALSE(explanation);
    EXPECT_THAT(explanation.error().to_string(),
                AllOf(HasSubstr("UnheardMoeForCausalLM"), HasSubstr("no tensor has a known expert"),
                      HasSubstr("model.layers.0.mlp.experts.0.gate_proj"),
                      HasSubstr("model.layers.0.block_sparse_moe.experts.0.w1")));
  }
}

}  // namespace
}  // namespace moracle::unknown_family_test
