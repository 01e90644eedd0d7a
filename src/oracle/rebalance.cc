// Placement by measured load of experts that are on ranks already: few of them should move.
#include <algorithm>

#include "base/try.h"
#include "moracle/routing.h"

namespace moracle {
namespace {

// Of the largest load; what is gained must outweigh reading experts.
constexpr double kLeastGain = 0.05;

int64_t largest_load_of(std::span<const int64_t> tokens, std::span<const ExpertMap> ranks) {
  const std::vector<int64_t> loads = load_of_ranks(tokens, ranks);
  return *std::max_element(loads.begin(), loads.end());
}

int64_t common_experts(const ExpertMap& a, const ExpertMap& b) {
  return std::count_if(a.global().begin(), a.global().end(),
                       [&](int32_t expert) { return b.local()[expert] >= 0; });
}

// Gives each map to a rank: the pair with the most common experts first.
std::vector<ExpertMap> near_their_experts(std::vector<ExpertMap>&& maps,
                                          std::span<const ExpertMap> now) {
  const size_t size = maps.size();
  std::vector<std::vector<int64_t>> common(size, std::vector<int64_t>(size));
  for (size_t m = 0; m < size; ++m)
    for (size_t r = 0; r < size; ++r) common[m][r] = common_experts(maps[m], now[r]);
  std::vector<bool> is_given(size), has_map(size);
  std::vector<ExpertMap> placed(size);
  for (size_t given = 0; given < size; ++given) {
    size_t map = 0, rank = 0;
    int64_t most = -1;
    for (size_t m = 0; m < size; ++m) {
      for (size_t r = 0; r < size; ++r) {
        if (is_given[m] || has_map[r] || common[m][r] <= most) continue;
        most = common[m][r], map = m, rank = r;
      }
    }
    is_given[map] = has_map[rank] = true;
    placed[rank] = std::move(maps[map]);
  }
  return placed;
}

}  // namespace

Result<std::vector<ExpertMap>> rebalance(std::span<const int64_t> tokens,
                                         std::span<const ExpertMap> now, int64_t redundant) {
  MORACLE_TRY(std::vector<ExpertMap> best,
              place_by_load(tokens, static_cast<int64_t>(now.size()), redundant));
  const auto new_load = static_cast<double>(largest_load_of(tokens, best)),
             old_load = static_cast<double>(largest_load_of(tokens, now));
  if (!(new_load < (1 - kLeastGain) * old_load))
    return std::vector<ExpertMap>(now.begin(), now.end());
  return near_their_experts(std::move(best), now);
}

}  // namespace moracle
