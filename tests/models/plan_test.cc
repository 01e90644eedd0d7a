// Tests that a model's memory is known, and rejected if too large, before weights are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "golden_model.h"
#include "support/model_words.h"

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

// The embedding is one allocation, which the device may refuse although its memory suffices.
TEST(ModelPlans, RejectAllocationLargerThanDeviceAllows) {
  const auto checkpoint = Checkpoint::open(testing::golden_folder("qwen3_moe"));
  ASSERT_TRUE(checkpoint);
  ModelOptions options;
  options.device = testing::device("opencl:0");
  options.max_num_tokens = 1;
  Machine machine = *Machine::find("arc-b580");
  const auto planned = plan(*checkpoint, options, machine);
  ASSERT_TRUE(planned) << planned.error().to_string();
  int64_t largest_of_layers = 0;
  for (const Choice& choice : planned->choices)
    largest_of_layers = std::max(largest_of_layers, choice.selection.plan->largest_allocation());
  int64_t& most = machine.gpus[0].max_allocation_bytes;
  most = largest_of_layers;
  const auto refused = plan(*checkpoint, options, machine);
  ASSERT_FALSE(refused) << "the embedding must be larger than any layer";
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_THAT(refused.error().need, HasSubstr("on opencl:0 in one allocation"));
  EXPECT_THAT(refused.error().fact, HasSubstr(std::to_string(most)));
  most = 1;  // the rule `memory` objects to every row
  const auto no_row = plan(*checkpoint, options, machine);
  ASSERT_FALSE(no_row);
  EXPECT_EQ(no_row.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(no_row.error().fact, HasSubstr("of it in one allocation"));
}

}  // namespace
}  // namespace moracle::plan_test
