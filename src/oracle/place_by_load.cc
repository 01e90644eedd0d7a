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

// The number of copies of each expert: the next copy goes where the tokens of one copy are the
// most.
std::vector<int64_t> copies_of_hot(std::span<const int64_t> tokens, int64_t ep_size,
                                   int64_t redundant) {
  const auto num_experts = static_cast<int64_t>(tokens.size());
  std::vector<int64_t> copies(num_experts, 1);
  for (; redundant > 0; --redundant) {
    int64_t hottest = -1;
    for (int64_t e = 0; e < num_experts; ++e) {
      if (copies[e] == ep_size) continue;
      // tokens / copies, compared without division
      if (hottest < 0 || tokens[e] * copies[hottest] > tokens[hottest] * copies[e]) hottest = e;
    }
    ++copies[hottest];
  }
  return copies;
}

// Longest first over all copies. A copy that no rank with space can take is left out: each such
// rank has one already.
Result<std::vector<ExpertMap>> place_copies(std::span<const int64_t> tokens, int64_t ep_size,
                                            int64_t redundant) {
  struct Copy {
    int64_t expert;
    double load;
  };
  struct Rank {
    double load = 0;
    std::vector<int64_t> experts;
    bool has(int64_t expert) const {
      return std::find(experts.begin(), experts.end(), expert) != experts.end();
    }
  };
  const auto num_experts = static_cast<int64_t>(tokens.size());
  const std::vector<int64_t> copies = copies_of_hot(tokens, ep_size, redundant);
  std::vector<Copy> all;
  for (int64_t e = 0; e < num_experts; ++e)
    all.insert(all.end(), copies[e],
               {e, static_cast<double>(tokens[e]) / static_cast<double>(copies[e])});
  std::stable_sort(all.begin(), all.end(),
                   [](const Copy& a, const Copy& b) { return a.load > b.load; });
  const auto most = static_cast<size_t>((num_experts + redundant + ep_size - 1) / ep_size);
  std::vector<Rank> ranks(ep_size);
  for (const Copy& copy : all) {
    Rank* least = nullptr;
    for (Rank& rank : ranks) {
      if (rank.experts.size() == most || rank.has(copy.expert)) continue;
      if (least == nullptr || std::tuple(rank.load, rank.experts.size()) <
                                  std::tuple(least->load, least->experts.size()))
        least = &rank;
    }
    if (least == nullptr) continue;
    least->load += copy.load;
    least->experts.push_back(copy.expert);
  }
  std::vector<ExpertMap> maps;
  for (Rank& rank : ranks) {
    std::sort(rank.experts.begin(), rank.experts.end());
    std::vector<int32_t> local(num_experts, -1);
    for (size_t i = 0; i < rank.experts.size(); ++i)
      local[rank.experts[i]] = static_cast<int32_t>(i);
    MORACLE_TRY(ExpertMap map, ExpertMap::from(std::move(local)));
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace

std::vector<int64_t> load_of_ranks(std::span<const int64_t> tokens,
                                   std::span<const ExpertMap> ranks) {
  std::vector<int64_t> copies(tokens.size()), seen(tokens.size());
  for (const ExpertMap& rank : ranks)
    for (const int32_t expert : rank.global()) ++copies[expert];
  std::vector<int64_t> loads;
  for (const ExpertMap& rank : ranks) {
    int64_t& load = loads.emplace_back(0);
    for (const int32_t expert : rank.global()) {
      const int64_t rest = tokens[expert] % copies[expert];
      load += tokens[expert] / copies[expert] + (seen[expert]++ < rest ? 1 : 0);
    }
  }
  return loads;
}

Result<std::vector<ExpertMap>> place_by_load(std::span<const int64_t> tokens, int64_t ep_size,
                                             int64_t redundant) {
  const auto num_experts = static_cast<int64_t>(tokens.size());
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    if (tokens[expert] >= 0) continue;
    return Error{ErrorKind::kInvalidArgument, "", "expert_map", "0 or more tokens for each expert",
                 str("expert ", expert, " has ", tokens[expert])};
  }
  MORACLE_TRY(const auto linear, place_by_name(num_experts, ep_size, Placement::kLinear));
  MORACLE_TRY(const auto round_robin, place_by_name(num_experts, ep_size, Placement::kRoundRobin));
  if (linear.empty()) return ExpertMap::place(num_experts, ep_size, 0).error();
  MORACLE_TRY(std::vector<ExpertMap> best, maps_of(longest_first(tokens, ep_size), ep_size));
  // Longest first is not optimal: 2 2 2 3 3 on two ranks gives 7 and 5, linear 6 and 6.
  for (const auto* other : {&linear, &round_robin})
    if (largest_load(tokens, *other) < largest_load(tokens, best)) best = *other;
  if (redundant == 0) return best;
  if (redundant < 0 || redundant > num_experts * (ep_size - 1)) {
    return Error{ErrorKind::kInvalidArgument, "", "redundant experts",
                 str("0 to ", num_experts * (ep_size - 1), ": each of ", num_experts,
                     " experts once on each other rank"),
                 str("it is ", redundant)};
  }
  // Fewer copies can balance better: one more is one more piece to place.
  for (; redundant > 0; redundant /= 2) {
    MORACLE_TRY(std::vector<ExpertMap> copied, place_copies(tokens, ep_size, redundant));
    if (largest_load(tokens, copied) < largest_load(tokens, best)) best = std::move(copied);
  }
  return best;
}

}  // namespace moracle
