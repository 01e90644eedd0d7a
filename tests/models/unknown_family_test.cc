// Tests checkpoints of families that src/models/families does not describe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/synthetic_checkpoint.h"
#include "models/description.h"
#include "models/explain.h"

namespace moracle::unknown_family_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;

/// OLMoE's config.json: one intermediate size, no scoring function, no renormalization.
SyntheticCheckpoint olmoe() {
  SyntheticCheckpoint written = SyntheticCheckpoint::plain();
  written.config["architectures"] = {"OlmoeForCausalLM"};
  written.config["intermediate_size"] = written.config["moe_intermediate_size"];
  for (const char* key : {"moe_intermediate_size", "norm_topk_prob"}) written.config.erase(key);
  return written;
}

TEST(UnknownFamily, ExpertsAreReadUnderUsualNamesAndKeys) {
  const auto checkpoint = olmoe().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto known = SyntheticCheckpoint::plain().open();
  ASSERT_TRUE(known) << known.error().to_string();
  const auto experts = checkpoint->moe_layer(0), same = known->moe_layer(0);
  ASSERT_TRUE(experts) << experts.error().to_string();
  ASSERT_TRUE(same) << same.error().to_string();
  EXPECT_EQ(experts->spec.intermediate_size, same->spec.intermediate_size);
  EXPECT_EQ(experts->spec.num_experts, same->spec.num_experts);
  EXPECT_EQ(experts->spec.routing.score, Score::kSoftmax);
  EXPECT_FALSE(experts->spec.routing.renormalize);
}

TEST(UnknownFamily, DescriptionNamesWhatWasAssumed) {
  const auto checkpoint = olmoe().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto description = describe(*checkpoint);
  ASSERT_FALSE(description);
  EXPECT_EQ(description.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(description.error().to_string(),
              AllOf(HasSubstr("OlmoeForCausalLM"),
                    HasSubstr("assumptions, because the architecture is unknown"),
                    HasSubstr("intermediate_size is the size of the experts"),
                    HasSubstr("softmax scores"), HasSubstr("weights not renormalised")));
}

TEST(UnknownFamily, ExplainStillChoosesBackendsForTheExperts) {
  const auto checkpoint = olmoe().open();
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  const auto explanation = explain(*checkpoint, {}, Machine::here(), {});
  ASSERT_TRUE(explanation) << explanation.error().to_string();
  EXPECT_FALSE(explanation->choices.empty());
  EXPECT_THAT(explanation->not_runnable,
              HasSubstr("assumptions, because the architecture is unknown"));
}

}  // namespace
}  // namespace moracle::unknown_family_test
