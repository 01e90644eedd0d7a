#include "placement/call_ways.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

namespace moracle::call_ways_test {
namespace {

struct Rates {
  double host = 0, slots = 0, bus = 0;  // GB/s
  double host_rows = 0;  // experts that the host computes for a token, by a microsecond
  double call_us = 0;    // of a call of the host, whatever it computes
};

/// Equal times from two formulas in double differ by a few roundings. They have no product of a
/// kernel in them, so they are the same on every machine.
constexpr double kRoundings = 1 + 8 * std::numeric_limits<double>::epsilon();

/// A layer of Qwen3-30B-A3B in 4 bits, on a machine with these rates, as loading would measure it.
CallTimes times_on(const Rates& rates, int64_t num_slots, bool streams, int64_t num_experts = 128,
                   int64_t top_k = 8) {
  constexpr double kBytes = 2.95e6, kBytesPerUs = 1e3;
  CallTimes times;
  times.num_experts = num_experts, times.top_k = top_k;
  times.slot_us = kBytes / (rates.slots * kBytesPerUs);
  times.transfer_us = kBytes / (rates.bus * kBytesPerUs);
  for (int64_t tokens = 1; tokens <= 4096; tokens *= 2) {
    const double reads = times.touched(tokens) * kBytes / (rates.host * kBytesPerUs);
    const double computes = static_cast<double>(tokens * top_k) / rates.host_rows;
    times.on_host.push_back({tokens, rates.call_us + std::max(reads, computes)});
  }
  times.num_filled = std::min(num_slots, times.balanced_slots());
  if (streams)
    times.stream_us = static_cast<double>(num_experts - times.num_filled) * times.transfer_us;
  return times;
}

TEST(CallWays, HostMeasurementsComeBack) {
  const CallTimes times = times_on({80, 4500, 55, 2, 0}, 30, true);
  EXPECT_DOUBLE_EQ(times.touched(1), 8);
  EXPECT_DOUBLE_EQ(times.touched(1000), 128);
  for (const CallTimes::OnHost& one : times.on_host)
    EXPECT_DOUBLE_EQ(times.host_us(one.num_tokens), one.us);
  for (int64_t tokens = 1; tokens < 5000; ++tokens)
    EXPECT_LE(times.host_us(tokens), times.host_us(tokens + 1) * kRoundings) << tokens;
}

// 16 AMX cores beside an H200.
TEST(CallWays, FastHostComputesUntilManyTokens) {
  for (const double host : {78.0, 115.0}) {
    for (const int64_t slots : {0, 30, 64}) {
      const CallTimes times = times_on({host, 4500, 55, 2, 0}, slots, true);
      int64_t streamed_from = 1;
      while (times.best(streamed_from) != CallWay::kStreamed) {
        EXPECT_EQ(times.best(streamed_from), CallWay::kDivided) << streamed_from;
        ASSERT_LT(++streamed_from, 8192);
      }
      // Slots take their share from both ways alike, so they do not bring the crossing forward.
      EXPECT_GT(streamed_from, 32);
    }
  }
}

// Two cores beside a fast GPU: the bus brings an expert before the host has computed it.
TEST(CallWays, SlowHostFetchesFewExpertsAndStreamsMany) {
  const CallTimes times = times_on({8, 1000, 25, 0.01, 0}, 48, true);
  EXPECT_EQ(times.best(1), CallWay::kFetched);
  EXPECT_EQ(times.best(64), CallWay::kStreamed);
  const CallTimes none = times_on({8, 1000, 25, 0.01, 0}, 0, true);
  EXPECT_EQ(none.best(1), CallWay::kDivided) << "there is no slot to fetch into";
  // Two of eight experts, as Mixtral: all of them cross before the host has computed two.
  EXPECT_EQ(times_on({4, 1000, 25, 0.01, 0}, 0, true, 8, 2).best(1), CallWay::kStreamed);
}

TEST(CallWays, SlowSlotsGetFewExperts) {
  const CallTimes times = times_on({80, 20, 6, 2, 0}, 128, false);
  EXPECT_EQ(times.num_filled, 128 * 20 / 100);
}

// The chosen way is neither slower than the host alone nor than the device alone, whose experts
// cross as it needs them or all together. 3 % are what a way must gain to be chosen.
TEST(CallWays, NeverSlowerThanOneDeviceAloneOnRandomMachines) {
  std::mt19937_64 engine(1);
  const auto log_real = [&](double from, double to) {
    return std::exp(std::uniform_real_distribution<double>(std::log(from), std::log(to))(engine));
  };
  const auto pick = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(engine);
  };
  int64_t ways[3] = {};
  for (int machine = 0; machine < 2000; ++machine) {
    const int64_t experts = int64_t{8} << pick(0, 6),
                  top_k = pick(1, std::min<int64_t>(experts, 10));
    const Rates rates{log_real(3, 500), log_real(20, 8000), log_real(2, 100), log_real(0.002, 10),
                      pick(0, 1) == 0 ? 0 : log_real(1, 300)};
    const CallTimes times = times_on(rates, pick(0, experts), pick(0, 3) > 0, experts, top_k);
    for (int64_t tokens = 1; tokens <= 4096; tokens = tokens < 40 ? tokens + 1 : tokens * 3 / 2) {
      SCOPED_TRACE("machine " + std::to_string(machine) + ", " + std::to_string(tokens) +
                   " tokens");
      const CallWay way = times.best(tokens);
      ++ways[static_cast<int>(way)];
      const double us = 0.97 * times.call_us(way, tokens);
      ASSERT_LE(times.call_us(way, tokens), times.host_us(tokens) * kRoundings);
      ASSERT_LE(us, times.call_us(CallWay::kFetched, tokens));
      ASSERT_LE(us, times.call_us(CallWay::kStreamed, tokens));
    }
    const std::vector<CallWay> all = times.ways(64);
    for (int64_t tokens = 1; tokens <= 64; ++tokens)
      ASSERT_EQ(way_of(all, tokens), times.best(tokens));
    EXPECT_EQ(way_of(all, 1000), all.back());
  }
  for (const int64_t count : ways) EXPECT_GT(count, 1000) << "every way is the best somewhere";
}

}  // namespace
}  // namespace moracle::call_ways_test
