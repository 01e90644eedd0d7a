// A device that works at once has nothing to record.
#include "kernels/recording.h"

#include <gtest/gtest.h>

namespace moracle {
namespace {

TEST(Recording, IsRefusedByACpu) {
  const std::shared_ptr<Device> device = *open_device("cpu", 1);
  EXPECT_FALSE(can_record(*device));
  bool called = false;
  const auto recorded = record(*device, [&](Stream) { return called = true, Status(); });
  ASSERT_FALSE(recorded);
  EXPECT_EQ(recorded.error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(recorded.error().place, "cpu");
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace moracle
