// Tests the placement of experts by measured load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "moracle/routing.h"

namespace moracle::place_by_load_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Counts = std::vector<int64_t>;

int64_t largest(const Counts& tokens, std::span<const ExpertMap> ranks) {
  const Counts loads = load_of_ranks(tokens, ranks);
  return *std::max_element(loads.begin(), loads.end());
}

int64_t largest_by_name(const Counts& tokens, int64_t ep_size, Placement placement) {
  std::vector<ExpertMap> ranks;
  for (int64_t rank = 0; rank < ep_size; ++rank)
    ranks.push_back(
        *ExpertMap::place(static_cast<int64_t>(tokens.size()), ep_size, rank, placement));
  return largest(tokens, ranks);
}

TEST(PlaceByLoad, GivesTheMostChosenExpertsToTheLeastLoadedRanks) {
  const auto ranks = *place_by_load(Counts{10, 9, 8, 1, 2, 3}, 3);
  EXPECT_THAT(ranks[0].global(), ElementsAre(0, 3));
  EXPECT_THAT(ranks[1].global(), ElementsAre(1, 4));
  EXPECT_THAT(ranks[2].global(), ElementsAre(2, 5));
  EXPECT_THAT(load_of_ranks(Counts{10, 9, 8, 1, 2, 3}, ranks), ElementsAre(11, 11, 11));
}

TEST(PlaceByLoad, RankOfAHotExpertHoldsFewerExperts) {
  const auto ranks = *place_by_load(Counts{100, 1, 1, 1, 1}, 2);  // at most 3 on a rank
  EXPECT_THAT(ranks[0].global(), ElementsAre(0, 4));
  EXPECT_THAT(ranks[1].global(), ElementsAre(1, 2, 3));
}

TEST(PlaceByLoad, TakesLinearWhereLongestFirstIsWorse) {
  const auto ranks = *place_by_load(Counts{2, 2, 2, 3, 3}, 2);
  EXPECT_THAT(load_of_ranks(Counts{2, 2, 2, 3, 3}, ranks), ElementsAre(6, 6));
}

TEST(PlaceByLoad, CopiesOfAHotExpertShareItsTokens) {
  const Counts tokens{100, 1, 1, 2};
  EXPECT_EQ(largest(tokens, *place_by_load(tokens, 2)), 101);
  const auto ranks = *place_by_load(tokens, 2, 1);
  EXPECT_THAT(ranks[0].global(), ElementsAre(0, 3));
  EXPECT_THAT(ranks[1].global(), ElementsAre(0, 1, 2));
  EXPECT_THAT(load_of_ranks(tokens, ranks), ElementsAre(52, 52));
}

TEST(PlaceByLoad, CopiesThatLowerNoLoadAreLeftOut) {
  const Counts even{5, 5, 5, 5};
  EXPECT_EQ(*place_by_load(even, 2, 2), *place_by_load(even, 2));
}

TEST(PlaceByLoad, RefusesMoreCopiesThanRanksCanHold) {
  EXPECT_TRUE(place_by_load(Counts{9, 1}, 3, 4));
  for (const int64_t redundant : {-1, 5})
    EXPECT_THAT(place_by_load(Counts{9, 1}, 3, redundant).error().to_string(),
                HasSubstr("needs 0 to 4: each of 2 experts once on each other rank"));
}

TEST(PlaceByLoad, CopiesAreNeverWorseForRandomCounts) {
  std::mt19937 random(22);
  int64_t better = 0, cases = 0;
  for (const int64_t experts : {1, 4, 7, 16, 60}) {
    for (const int64_t ep_size : {2, 3, 4, 8}) {
      for (const int64_t redundant : {int64_t{1}, experts / 2, experts * (ep_size - 1)}) {
        Counts tokens(experts);
        for (int64_t& count : tokens) count = random() % (random() % 4 == 0 ? 1000 : 100);
        SCOPED_TRACE(::testing::PrintToString(tokens));
        const auto ranks = *place_by_load(tokens, ep_size, redundant);
        EXPECT_TRUE(check_cover(ranks, /*one_each=*/false));
        int64_t held = 0;
        for (const ExpertMap& rank : ranks) {
          EXPECT_LE(rank.num_local(), (experts + redundant + ep_size - 1) / ep_size);
          held += rank.num_local();
        }
        EXPECT_LE(held, experts + redundant);
        const int64_t with = largest(tokens, ranks),
                      without = largest(tokens, *place_by_load(tokens, ep_size));
        EXPECT_LE(with, without);
        better += with < without ? 1 : 0;
        ++cases;
        const Counts loads = load_of_ranks(tokens, ranks);
        EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), int64_t{0}),
                  std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
      }
    }
  }
  EXPECT_GT(better, cases / 4);
}

TEST(PlaceByLoad, IsNeverWorseThanAPlacementByNameForRandomCounts) {
  std::mt19937 random(21);
  int64_t better = 0, cases = 0;
  for (const int64_t experts : {1, 4, 7, 16, 60, 128}) {
    for (const int64_t ep_size : {1, 2, 3, 4, 8, 16}) {
      for (const int64_t most : {0, 1, 5, 100'000}) {
        Counts tokens(experts);
        for (int64_t& count : tokens) {
          const auto number = static_cast<int64_t>(random() % (most + 1));
          count = random() % 4 == 0 ? number : number / 10;  // some are hot
        }
        SCOPED_TRACE(::testing::PrintToString(tokens));
        const auto ranks = *place_by_load(tokens, ep_size);
        ASSERT_EQ(static_cast<int64_t>(ranks.size()), ep_size);
        EXPECT_TRUE(check_cover(ranks));
        for (const ExpertMap& rank : ranks) {
          EXPECT_LE(rank.num_local(), (experts + ep_size - 1) / ep_size);
          EXPECT_TRUE(std::is_sorted(rank.global().begin(), rank.global().end()));
        }
        const int64_t placed = largest(tokens, ranks);
        const int64_t linear = largest_by_name(tokens, ep_size, Placement::kLinear);
        EXPECT_LE(placed, linear);
        EXPECT_LE(placed, largest_by_name(tokens, ep_size, Placement::kRoundRobin));
        better += placed < linear ? 1 : 0;
        ++cases;
        EXPECT_EQ(*place_by_load(tokens, ep_size), ranks);
      }
    }
  }
  EXPECT_GT(better, cases / 4);
}

TEST(PlaceByLoad, RejectsNegativeCountsAndNoRanks) {
  EXPECT_THAT(place_by_load(Counts{1, -2}, 2).error().to_string(), HasSubstr("expert 1 has -2"));
  EXPECT_THAT(place_by_load(Counts{1, 2}, 0).error().to_string(), HasSubstr("0 ranks"));
  EXPECT_THAT(place_by_load(Counts{}, 2).error().to_string(), HasSubstr("0 experts"));
}

}  // namespace
}  // namespace moracle::place_by_load_test
