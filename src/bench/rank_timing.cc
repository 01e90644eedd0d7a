#include "bench/rank_timing.h"

#include <chrono>
#include <vector>

#include "base/median.h"
#include "base/try.h"

namespace moracle::bench {

Result<double> time_together(const std::function<Status()>& call, int64_t calls, Group& group,
                             Device& device) {
  constexpr int kRounds = 7;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    MORACLE_CHECK(device.synchronize());
    MORACLE_CHECK(group.barrier());
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < calls; ++i) MORACLE_CHECK(call());
    MORACLE_CHECK(device.synchronize());
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    if (round > 0) rounds.push_back(taken.count() / static_cast<double>(calls));
  }
  return median(rounds);
}

}  // namespace moracle::bench
