// Tests the measured limits that benchmarks refer to: only for instructions that this CPU has.
#include "kernels/cpu/limits/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace moracle::cpu::limits_test {
namespace {

constexpr size_t kSmall = 4 << 20;

TEST(Limits, MeasuredOnlyForInstructionsOfCpu) {
  auto probe = LimitsProbe::make(1, kSmall);
  ASSERT_TRUE(probe) << probe.error().to_string();
  const Limits limits = *probe->measure();
  EXPECT_EQ(limits.threads, 1);
  EXPECT_EQ(limits.buffer_bytes, static_cast<int64_t>(kSmall));
  EXPECT_GT(limits.read_bytes_per_second, 0);
  const std::string isa = names(Machine::here().cpu.isa);
  std::set<std::string> words;
  for (const Peak& peak : limits.peaks) {
    EXPECT_GT(peak.ops_per_second, 0) << peak.name;
    EXPECT_TRUE(peak.name.ends_with(peak.instruction)) << peak.name;
    // Several products within one instruction set: "avx2_madd" needs avx2.
    std::string feature(peak.instruction);
    for (const char* set : {"avx2", "avx_vnni"}) {
      if (feature.starts_with(std::string(set) + "_")) feature = set;
    }
    EXPECT_THAT(isa, ::testing::HasSubstr(feature));
    EXPECT_TRUE(words.insert(std::string(peak.name)).second) << "twice: " << peak.name;
  }
  const bool avx2 = missing(Isa::kAvx2, Machine::here().cpu.isa) == Isa::kNone;
  EXPECT_EQ(words.contains("f32 avx2"), avx2);
}

TEST(Limits, ProbedAgainByName) {
  auto probe = LimitsProbe::make(2, kSmall);
  ASSERT_TRUE(probe) << probe.error().to_string();
  EXPECT_EQ(probe->threads(), 2);
  EXPECT_GT(*probe->read_bytes_per_second(), 0);
  EXPECT_EQ(*probe->ops_per_second("no such peak"), 0);
  const auto limits = probe->measure();
  ASSERT_TRUE(limits) << limits.error().to_string();
  for (const Peak& peak : limits->peaks) EXPECT_GT(*probe->ops_per_second(peak.name), 0);
}

TEST(Limits, AcceptAnyBufferSize) {
  for (const size_t bytes : {size_t{1}, size_t{100'000}}) {
    auto probe = LimitsProbe::make(3, bytes);
    ASSERT_TRUE(probe) << probe.error().to_string();
    EXPECT_GE(probe->buffer_bytes(), 4 * 4096);
    EXPECT_GT(*probe->read_bytes_per_second(), 0);
  }
}

// A step takes several seconds and asks the callback first, so no step starts after a stop.
TEST(Limits, StopBetweenSteps) {
  int asked = 0;
  const Progress count = [&](int64_t, int64_t) { return ++asked > 0; };
  auto probe = LimitsProbe::make(1, size_t{600} << 20, count);
  ASSERT_TRUE(probe) << probe.error().to_string();
  EXPECT_GE(asked, 3) << "once for every 256 MiB";
  auto small = LimitsProbe::make(1, kSmall);
  ASSERT_TRUE(small) << small.error().to_string();
  asked = 0;
  const auto limits = small->measure(count);
  ASSERT_TRUE(limits) << limits.error().to_string();
  EXPECT_EQ(asked, 5 + static_cast<int>(limits->peaks.size()));
  for (const int last : {1, 3, asked}) {
    int left = last;
    const auto stopped = small->measure([&](int64_t, int64_t) { return --left > 0; });
    ASSERT_FALSE(stopped) << last;
    EXPECT_EQ(stopped.error().kind, ErrorKind::kCancelled);
  }
  const auto unmade = LimitsProbe::make(1, kSmall, [](int64_t, int64_t) { return false; });
  ASSERT_FALSE(unmade);
  EXPECT_EQ(unmade.error().kind, ErrorKind::kCancelled);
}

}  // namespace
}  // namespace moracle::cpu::limits_test
