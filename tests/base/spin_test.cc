// Tests when a thread that waits spins and when it sleeps.
#include "base/threads/spin.h"

#include <gtest/gtest.h>

namespace moracle::spin_test {
namespace {

TEST(Spin, WaitThatEndsWhileSpinningDoesNotSleep) {
  int asked = 0, slept = 0;
  spin_then_sleep(
      1000, [&] { return ++asked == 100; }, [&] { ++slept; });
  EXPECT_EQ(asked, 100);
  EXPECT_EQ(slept, 0);
}

TEST(Spin, LongerWaitSleepsUntilDone) {
  int asked = 0, slept = 0;
  spin_then_sleep(
      1000, [&] { return ++asked, slept == 3; }, [&] { ++slept; });
  EXPECT_EQ(asked, 1000 + 4);
  EXPECT_EQ(slept, 3);
}

TEST(Spin, WaitWithoutPausesSleepsAtOnce) {
  bool done = false;
  int asked = 0;
  spin_then_sleep(
      0, [&] { return ++asked, done; }, [&] { done = true; });
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace moracle::spin_test
