#include "placement/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace moracle::policy_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Ids = std::vector<int32_t>;

// A slot saves 90 us for each use; a move pays from half a use on.
constexpr ExpertCosts kCosts{.host_us = 100, .slot_us = 10, .move_us = 45, .bytes = 1000};

SlotPolicy policy_of(double half_life = 4, ExpertCosts costs = kCosts) {
  return SlotPolicy(8, 3, {costs, half_life});
}

TEST(SlotPolicy, ScoreHalvesAfterHalfLife) {
  SlotPolicy policy = policy_of(4);
  policy.observe(Ids{2});
  EXPECT_EQ(policy.score(2), 1);
  for (int step = 0; step < 4; ++step) policy.observe(Ids{});
  EXPECT_NEAR(policy.score(2), 0.5, 1e-12);
  policy.observe(Ids{2, 2, -1, 8});
  EXPECT_NEAR(policy.score(2), 0.5 * std::exp2(-0.25) + 1, 1e-12) << "once for each step";
}

TEST(SlotPolicy, FillsEmptySlotsWithMissesByScore) {
  SlotPolicy policy = policy_of();
  policy.observe(Ids{5});
  policy.observe(Ids{1, 5, 3});
  const ExpertSlots slots(8, 3);
  EXPECT_THAT(policy.decide(slots, 8),
              ElementsAre(ExpertMove{5, 0}, ExpertMove{1, 1}, ExpertMove{3, 2}));
  EXPECT_THAT(policy.decide(slots, 1), ElementsAre(ExpertMove{5, 0}));
  EXPECT_THAT(policy.decide(slots, 0), IsEmpty());
}

TEST(SlotPolicy, EvictsExpertOfLowestScore) {
  SlotPolicy policy = policy_of();
  ExpertSlots slots(8, 2);
  ASSERT_TRUE(slots.begin(0, 0) && slots.finish(0) && slots.begin(1, 1) && slots.finish(1));
  policy.observe(Ids{0, 1});
  for (int step = 0; step < 8; ++step) policy.observe(Ids{0});
  policy.observe(Ids{6});
  EXPECT_THAT(policy.decide(slots, 8), ElementsAre(ExpertMove{6, 1}));
}

TEST(SlotPolicy, KeepsExpertUnlessGainPaysForMove) {
  ExpertSlots slots(8, 1);
  ASSERT_TRUE(slots.begin(0, 0) && slots.finish(0));
  SlotPolicy policy = policy_of();
  policy.observe(Ids{0});
  policy.observe(Ids{6});
  EXPECT_THAT(policy.decide(slots, 8), IsEmpty()) << "gains 0.16 uses";
  policy.observe(Ids{6});
  EXPECT_THAT(policy.decide(slots, 8), ElementsAre(ExpertMove{6, 0})) << "gains 1.1 uses";
  SlotPolicy costly = policy_of(4, {.host_us = 100, .slot_us = 10, .move_us = 900, .bytes = 1});
  for (int step = 0; step < 4; ++step) costly.observe(Ids{6});
  EXPECT_THAT(costly.decide(slots, 8), IsEmpty()) << "a move costs ten uses";
}

TEST(SlotPolicy, NeverMovesWhereSlotsAreSlower) {
  SlotPolicy policy = policy_of(4, {.host_us = 10, .slot_us = 10, .move_us = 0, .bytes = 1});
  policy.observe(Ids{6});
  EXPECT_THAT(policy.decide(ExpertSlots(8, 4), 8), IsEmpty());
}

TEST(SlotPolicy, LeavesArrivingExpertsAlone) {
  SlotPolicy policy = policy_of();
  ExpertSlots slots(8, 2);
  ASSERT_TRUE(slots.begin(6, 0));
  policy.observe(Ids{6, 7});
  EXPECT_THAT(policy.decide(slots, 8), ElementsAre(ExpertMove{7, 1}));
}

TEST(SlotPolicy, StartsFromStatistics) {
  SlotPolicy policy = policy_of(std::log(2.0) * 100);
  policy.start_from(std::vector<int64_t>{50, 0, 25}, 50);
  EXPECT_NEAR(policy.score(0), 100, 1e-9) << "used by every token";
  EXPECT_NEAR(policy.score(2), 50, 1e-9);
  EXPECT_EQ(policy.score(1), 0);
}

// Experts with a score of one that come back often, and ones that never do.
TEST(SlotPolicy, LearnsWhatScoresAreWorth) {
  const auto moves_after = [](bool again) {
    SlotPolicy policy(64, 2, {kCosts, 4});
    ExpertSlots slots(64, 2);
    EXPECT_TRUE(slots.begin(0, 0) && slots.finish(0) && slots.begin(1, 1) && slots.finish(1));
    int32_t expert = 2;
    for (int step = 0; step < 400; ++step) {
      // Each is used in one step, or again six steps later: its score is then below a half.
      policy.observe(Ids{expert});
      for (int rest = 0; rest < 5; ++rest) policy.observe(Ids{});
      if (again) policy.observe(Ids{expert});
      expert = 2 + (expert - 1) % 60;
    }
    policy.observe(Ids{63});
    return policy.decide(slots, 1);
  };
  EXPECT_THAT(moves_after(true), ElementsAre(ExpertMove{63, 0})) << "one more use follows";
  EXPECT_THAT(moves_after(false), IsEmpty()) << "no use follows";
}

TEST(SlotPolicy, StopsWhereSlotsAreTheSlowerDevice) {
  const ExpertCosts even{.host_us = 100, .slot_us = 90, .move_us = 0, .bytes = 1};
  ExpertSlots slots(8, 3);
  ASSERT_TRUE(slots.begin(0, 0) && slots.finish(0) && slots.begin(1, 1) && slots.finish(1));
  SlotPolicy policy = policy_of(4, even);
  policy.observe(Ids{0, 5, 6});
  EXPECT_THAT(policy.decide(slots, 1), ElementsAre(ExpertMove{5, 2}));
  SlotPolicy busy = policy_of(4, even);
  busy.observe(Ids{0, 1, 5});
  EXPECT_THAT(busy.decide(slots, 1), IsEmpty()) << "slots take 180 us, the host 100";
}

TEST(MoveBudget, FollowsWhatTheBusMovesInAStep) {
  MoveBudget budget(1000);
  for (const int64_t grown : {2000, 4000}) {
    const int64_t moves = budget.moves_of(1000);
    for (int64_t i = 0; i < moves; ++i) budget.begin(1000);
    for (int64_t i = 0; i < moves; ++i) budget.end(1000);
    budget.end_step();
    EXPECT_EQ(budget.bytes(), grown) << "the bus delivered everything";
  }
  for (int i = 0; i < 4; ++i) budget.begin(1000);
  budget.end(1000), budget.end(1000), budget.end(1000);
  budget.end_step();
  EXPECT_EQ(budget.bytes(), 4500) << "one move waits";
  budget.end_step();
  EXPECT_EQ(budget.bytes(), 1000) << "nothing arrived";
  EXPECT_EQ(budget.moves_of(1000), 0);
}

TEST(MoveBudget, CountsMovesThatFit) {
  MoveBudget budget(2500);
  EXPECT_EQ(budget.moves_of(1000), 2);
  budget.begin(1000);
  EXPECT_EQ(budget.moves_of(1000), 1);
  budget.begin(1000);
  EXPECT_EQ(budget.moves_of(1000), 0);
  budget.end(1000);
  EXPECT_EQ(budget.moves_of(1000), 1);
  EXPECT_EQ(budget.moves_of(0), 0);
}

}  // namespace
}  // namespace moracle::policy_test
