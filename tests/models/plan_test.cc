// Tests that a model's memory is known, and rejected if too large, before weights are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden_model.h"

namespace moracle::plan_test {
namespace {

using ::testing::HasSubstr;

TEST(ModelPlans, RejectMoreMemoryThanDeviceHas) {
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

// Loading checks the same limit before it allocates.
TEST(ModelPlans, CheckedBeforeModelIsLoaded) {
  const auto checkpoint = Checkpoint::open(testing::golden_folder("qwen3_moe"));
  ASSERT_TRUE(checkpoint);
  ModelOptions options;
  options.max_num_tokens = 1 << 20;
  const auto some = plan(*checkpoint, options);
  ASSERT_TRUE(some) << some.error().to_string();
  // Slightly more than all memory: every single layer would fit.
  const double times = static_cast<double>(some->memory_bytes) / some->total_bytes();
  options.max_num_tokens = static_cast<int64_t>(1.05 * times * (1 << 20));
  const auto planned = plan(*checkpoint, options);
  ASSERT_FALSE(planned);
  if (planned.error().kind != ErrorKind::kOutOfMemory)
    GTEST_SKIP() << "this machine has memory for more tokens than a step may have";
  const auto refused = Model::load(*checkpoint, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(refused.error().need, planned.error().need);
  EXPECT_EQ(refused.error().fact, planned.error().fact);
}

}  // namespace
}  // namespace moracle::plan_test
