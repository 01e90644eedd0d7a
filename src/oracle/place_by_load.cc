// Placement of experts by measured load.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/text.h"
#include "base/try.h"
#include "moracle/routing.h"

namespace moracle {
namespace {

Result<std::vector<ExpertMap>> place_by_name(int64_t num_experts, int64_t ep_size,
                                             Placement placement) {
  std::vector<ExpertMap> ranks;
  for (int64_t rank = 0; rank < ep_size; ++rank) {
    MORACLE_TRY(ExpertMap map, ExpertMap::place(num_experts, ep_size, rank, placement));
    ranks.push_back(std::move(map));
  }
  return ranks;
}

int64_t largest_load(std::span<const int64_t> tokens, std::span<const ExpertMap> ranks) {
  const std::vector<int64_t> loads = load_of_ranks(tokens, ranks);
  return *std::max_element(loads.begin(), loads.end());
}

// The rank of each expert, by "longest processing time first".
std::vector<int64_t> longest_first(std::span<const int64_t> tokens, int64_t ep_size) {
  struct Rank {
    int64_t load = 0, experts = 0;
  };
  const auto num_experts = static_cast<int64_t>(tokens.size());
  const int64_t most = (num_experts + ep_size - 1) / ep_size;
  std::vector<Rank> ranks(ep_size);
  std::vector<int64_t> order(num_experts), holder(num_experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tokens[a] > tokens[b]; });
  for (const int64_t expert : order) {
    // Ranks that are full come last. Equal loads: the rank with fewer experts, then the first.
    const auto least =
        std::min_element(ranks.begin(), ranks.end(), [&](const Rank& a, const Rank& b) {
          return std::tuple(a.experts == most, a.load, a.experts) <
                 std::tuple(b.experts == most, b.load, b.experts);
        });
    least->load += tokens[expert];
    ++least->experts;
    holder[expert] = least - ranks.begin();
  }
  return holder;
}

Result<std::vector<ExpertMap>> maps_of(std::span<const int64_t> holder, int64_t ep_size) {
  std::vector<std::vector<int32_t>> local(ep_size, std::vector<int32_t>(holder.size(), -1));
  std::vector<int32_t> count(ep_size);
  for (size_t expert = 0; expert < holder.size(); ++expert)
    local[holder[expert]][expert] = count[holder[expert]]++;
  std::vector<ExpertMap> ranks;
  for (std::vector<int32_t>& map : local) {
    MORACLE_TRY(ExpertMap rank, ExpertMap::from(std::move(map)));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

}  // namespace

std::vector<int64_t> load_of_ranks(std::span<const int64_t> tokens,
                                   std::span<const ExpertMap> ranks) {
  std::vector<int64_t> loads;
  for (const ExpertMap& rank : ranks) {
    int64_t& load = loads.emplace_back(0);
    for (const int32_t expert : rank.global()) load += tokens[expert];
  }
  return loads;
}

Result<std::vector<ExpertMap>> place_by_load(std::span<const int64_t> tokens, int64_t ep_size) {
  const auto num_experts = static_cast<int64_t>(tokens.size());
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    if (tokens[expert] >= 0) continue;
    return Error{ErrorKind::kInvalidArgument, "", "expert_map", "0 or more tokens for each expert",
                 str("expert ", expert, " has ", tokens[expert])};
  }
  MORACLE_TRY(const auto linear, place_by_name(num_experts, ep_size, Placement::kLinear));
  MORACLE_TRY(const auto turns, place_by_name(num_experts, ep_size, Placement::kRoundRobin));
  if (linear.empty()) return ExpertMap::place(num_experts, ep_size, 0).error();
  MORACLE_TRY(std::vector<ExpertMap> best, maps_of(longest_first(tokens, ep_size), ep_size));
  // Longest first is not optimal: 2 2 2 3 3 on two ranks gives 7 and 5, linear 6 and 6.
  for (const auto* other : {&linear, &turns})
    if (largest_load(tokens, *other) < largest_load(tokens, best)) best = *other;
  return best;
}

}  // namespace moracle
