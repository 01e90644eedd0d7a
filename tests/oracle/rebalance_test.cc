// Placement by load of experts that are on ranks already.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "moracle/routing.h"

namespace moracle::rebalance_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Maps = std::vector<ExpertMap>;

Maps by_name(int64_t num_experts, int64_t size, Placement placement = Placement::kLinear) {
  Maps maps;
  for (int64_t r = 0; r < size; ++r)
    maps.push_back(*ExpertMap::place(num_experts, size, r, placement));
  return maps;
}

int64_t largest(const std::vector<int64_t>& tokens, const Maps& maps) {
  const auto loads = load_of_ranks(tokens, maps);
  return *std::max_element(loads.begin(), loads.end());
}

TEST(Rebalance, BalancedExpertsStay) {
  const Maps now = by_name(6, 3);
  EXPECT_EQ(*rebalance(std::vector<int64_t>{5, 5, 5, 5, 5, 5}, now), now);
  EXPECT_EQ(*rebalance(std::vector<int64_t>(6), now), now);  // no token has come
}

// 100 and 96 tokens on a rank; 98 and 98 are possible, which lower the largest load by 2 %.
TEST(Rebalance, SmallGainMovesNothing) {
  const Maps now = by_name(4, 2);
  const std::vector<int64_t> tokens{50, 50, 48, 48};
  EXPECT_LT(largest(tokens, *place_by_load(tokens, 2)), largest(tokens, now));
  EXPECT_EQ(*rebalance(tokens, now), now);
}

// place_by_load gives experts 0, 4 and 5 to rank 0. Rank 1 has two of them already.
TEST(Rebalance, FewExpertsMove) {
  const std::vector<int64_t> tokens{60, 50, 9, 8, 7, 6};
  EXPECT_THAT((*place_by_load(tokens, 2))[0].global(), ElementsAre(0, 4, 5));
  const Maps next = *rebalance(tokens, by_name(6, 2));
  EXPECT_THAT(next[0].global(), ElementsAre(1, 2, 3));
  EXPECT_THAT(next[1].global(), ElementsAre(0, 4, 5));
}

TEST(Rebalance, LoadsAreThoseOfPlaceByLoadOrStay) {
  std::mt19937 engine(3);
  for (int round = 0; round < 200; ++round) {
    const int64_t size = 1 + static_cast<int64_t>(engine() % 5), num_experts = 7;
    std::vector<int64_t> tokens;
    for (int64_t e = 0; e < num_experts; ++e)
      tokens.push_back(static_cast<int64_t>(engine() % 3 == 0 ? engine() % 1000 : engine() % 20));
    const int64_t redundant = size > 1 ? static_cast<int64_t>(engine() % 4) : 0;
    const Maps now = by_name(num_experts, size, Placement::kRoundRobin);
    const Maps next = *rebalance(tokens, now, redundant);
    ASSERT_TRUE(check_cover(next, /*one_each=*/redundant == 0));
    if (next == now) continue;
    EXPECT_LT(largest(tokens, next), largest(tokens, now));
    // The odd token of an expert with copies goes to the first of its ranks.
    EXPECT_NEAR(static_cast<double>(largest(tokens, next)),
                static_cast<double>(largest(tokens, *place_by_load(tokens, size, redundant))),
                static_cast<double>(redundant));
  }
}

TEST(Rebalance, TooManyCopiesAreRefused) {
  EXPECT_THAT(rebalance(std::vector<int64_t>{1, 2}, by_name(2, 2), 3).error().to_string(),
              HasSubstr("redundant experts"));
}

}  // namespace
}  // namespace moracle::rebalance_test
