// Tests how a thread that waits changes the time that it spins.
#include "base/spin.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace moracle::spin_test {
namespace {

constexpr int kMost = 20000;

/// Waits once, beyond the spinning, until `duration` later.
void wait(Spin& spin, std::chrono::milliseconds duration) {
  bool done = false;
  spin.wait([&] { return done; },
            [&] {
              std::this_thread::sleep_for(duration);
              done = true;
            });
}

TEST(Spin, WaitUntilDoneDoesNotSleep) {
  Spin spin(kMost);
  int asked = 0, slept = 0;
  spin.wait([&] { return ++asked == 100; }, [&] { ++slept; });
  EXPECT_EQ(asked, 100);
  EXPECT_EQ(slept, 0);
  EXPECT_EQ(spin.pauses(), kMost);
}

TEST(Spin, LongWaitsShortenSpinningStepByStep) {
  Spin spin(kMost);
  for (const int expected : {5000, 1250, 312, 200, 200}) {
    wait(spin, std::chrono::milliseconds(2));
    EXPECT_EQ(spin.pauses(), expected);
  }
}

TEST(Spin, NeverSpinsWithoutPauses) {
  Spin spin(0);
  wait(spin, std::chrono::milliseconds(2));
  wait(spin, std::chrono::milliseconds(0));
  EXPECT_EQ(spin.pauses(), 0);
}

// The system may interrupt a wait: one of many is short. Longer spinning may itself exceed the
// limit of short waits.
TEST(Spin, ShortWaitsRestoreSpinning) {
  Spin spin(kMost);
  for (int i = 0; i < 5; ++i) wait(spin, std::chrono::milliseconds(2));
  for (int i = 0; i < 1000 && spin.pauses() < 3200; ++i) wait(spin, std::chrono::milliseconds(0));
  EXPECT_GE(spin.pauses(), 3200);
}

}  // namespace
}  // namespace moracle::spin_test
