// What a model takes is known, and refused, before a weight is read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden_model.h"

namespace moracle {
namespace {

using ::testing::HasSubstr;

TEST(ModelPlans, RefuseMoreMemoryThanTheDeviceHas) {
  const auto checkpoint = Checkpoint::open(testing::golden_folder("qwen3_moe"));
  ASSERT_TRUE(checkpoint);
  Machine machine = Machine::here();
  const auto planned = plan(*checkpoint, {}, machine);
  ASSERT_TRUE(planned) << planned.error().to_string();
  EXPECT_EQ(planned->memory_bytes, machine.cpu.memory_bytes);
  machine.cpu.memory_bytes = planned->total_bytes();
  EXPECT_TRUE(plan(*checkpoint, {}, machine));
  --machine.cpu.memory_bytes;
  const auto refused = plan(*checkpoint, {}, machine);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(refused.error().file, checkpoint->folder());
  EXPECT_THAT(refused.error().need, HasSubstr(std::to_string(planned->total_bytes())));
  EXPECT_THAT(refused.error().fact, HasSubstr(std::to_string(machine.cpu.memory_bytes)));
}

}  // namespace
}  // namespace moracle
