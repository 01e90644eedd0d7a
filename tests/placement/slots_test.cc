#include "placement/slots.h"

#include <gtest/gtest.h>

namespace moracle::slots_test {
namespace {

using State = ExpertSlots::State;

TEST(ExpertSlots, HideExpertFromCallsUntilItsBytesAreComplete) {
  ExpertSlots slots(4, 2);
  EXPECT_EQ(slots.state(1), State::kEmpty);
  ASSERT_TRUE(slots.begin(3, 1));
  EXPECT_EQ(slots.state(1), State::kArriving);
  EXPECT_EQ(slots.slot_of(3), 1);
  EXPECT_EQ(slots.ready_slot(3), -1);
  ASSERT_TRUE(slots.finish(1));
  EXPECT_EQ(slots.ready_slot(3), 1);
  EXPECT_EQ(slots.num_ready(), 1);
}

TEST(ExpertSlots, EvictOldExpertWhenNewOneBeginsToArrive) {
  ExpertSlots slots(4, 2);
  ASSERT_TRUE(slots.begin(3, 1) && slots.finish(1));
  ASSERT_TRUE(slots.begin(0, 1));
  EXPECT_EQ(slots.slot_of(3), -1);
  EXPECT_EQ(slots.expert_in(1), 0);
  EXPECT_EQ(slots.num_ready(), 0);
}

TEST(ExpertSlots, RefuseMoveThatWouldBreakThem) {
  ExpertSlots slots(4, 2);
  ASSERT_TRUE(slots.begin(3, 1));
  const ExpertSlots before = slots;
  EXPECT_FALSE(slots.begin(3, 0)) << "a second slot for one expert";
  EXPECT_FALSE(slots.begin(0, 1)) << "a slot whose expert is arriving";
  EXPECT_FALSE(slots.begin(4, 0));
  EXPECT_FALSE(slots.begin(-1, 0));
  EXPECT_FALSE(slots.begin(0, 2));
  EXPECT_FALSE(slots.finish(0)) << "an empty slot";
  EXPECT_FALSE(slots.finish(-1));
  EXPECT_EQ(slots, before);
  ASSERT_TRUE(slots.finish(1));
  EXPECT_FALSE(slots.finish(1)) << "a ready slot";
}

TEST(ExpertSlots, ForgetExpertThatDoesNotArrive) {
  ExpertSlots slots(4, 2);
  ASSERT_TRUE(slots.begin(3, 1));
  slots.clear(1);
  EXPECT_EQ(slots, ExpertSlots(4, 2));
  EXPECT_TRUE(slots.begin(3, 0));
}

}  // namespace
}  // namespace moracle::slots_test
