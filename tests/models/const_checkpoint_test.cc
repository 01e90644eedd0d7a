// Tests one const Checkpoint used by several threads at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "golden_model.h"

namespace moracle::const_checkpoint_test {
namespace {

using ::testing::HasSubstr;
using testing::SyntheticCheckpoint;

// ThreadSanitizer fails this test on a race.
TEST(ConstCheckpoint, ServesSeveralThreadsAtOnce) {
  const auto opened = SyntheticCheckpoint::gptq({.desc_act = true}).open();
  ASSERT_TRUE(opened) << opened.error().to_string();
  const Checkpoint& checkpoint = *opened;
  const auto want_plan = plan(checkpoint);
  const auto want_outline = outline(checkpoint);
  ASSERT_TRUE(want_plan && want_outline);
  std::vector<std::string> wrong(4);
  const auto work = [&](std::string& why) {
    for (int round = 0; round < 3; ++round) {
      const auto sized = plan(checkpoint);
      if (!sized || sized->weight_bytes != want_plan->weight_bytes) why += "plan ";
      const auto outlined = outline(checkpoint);
      if (!outlined || outlined->parts.size() != want_outline->parts.size()) why += "outline ";
      const auto layer = checkpoint.moe_layer(round % 2);
      if (!layer || !layer->w13.expert(round) || !layer->w2.expert(0)) why += "moe_layer ";
      const auto router = checkpoint.router("model.layers.0.mlp.gate");
      if (!router || !router->expert(0)) why += "router ";
      if (!checkpoint.vector("model.norm.weight", 32)) why += "vector ";
      if (!checkpoint.read("lm_head.weight")) why += "read ";
      if (checkpoint.unclaimed().size() > 1000) why += "unclaimed ";
    }
  };
  std::vector<std::thread> threads;
  for (std::string& why : wrong) threads.emplace_back([&] { work(why); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& why : wrong) EXPECT_EQ(why, "");
}

TEST(ConstCheckpoint, NamesUnreadTensorEvenAfterOtherReads) {
  auto written = SyntheticCheckpoint::plain();
  written.add_floats("model.surplus.weight", {4});
  written.add_floats(SyntheticCheckpoint::expert(0, 9, "up_proj") + ".weight", {16, 32});
  const auto opened = written.open();
  ASSERT_TRUE(opened) << opened.error().to_string();
  ASSERT_TRUE(opened->tensor("model.surplus.weight"));
  ASSERT_TRUE(opened->linear({SyntheticCheckpoint::expert(0, 9, "up_proj")}));
  const auto layer = opened->moe_layer(0);
  ASSERT_FALSE(layer);
  EXPECT_THAT(layer.error().to_string(), HasSubstr("experts.9.up_proj.weight"));
  written.remove(SyntheticCheckpoint::expert(0, 9, "up_proj") + ".weight");
  const auto smaller = written.open();
  ASSERT_TRUE(smaller) << smaller.error().to_string();
  ASSERT_TRUE(smaller->tensor("model.surplus.weight"));
  for (int time = 0; time < 2; ++time) {
    const auto outlined = outline(*smaller);
    ASSERT_FALSE(outlined);
    EXPECT_THAT(outlined.error().to_string(), HasSubstr("tensor 'model.surplus.weight'"));
  }
}

}  // namespace
}  // namespace moracle::const_checkpoint_test
