// Tests the placement of experts on ranks: remainders, caller maps and invalid maps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moracle/oracle.h"

namespace moracle::expert_map_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<ExpertMap> all_ranks(int64_t num_experts, int64_t ep_size, Placement placement) {
  std::vector<ExpertMap> ranks;
  for (int64_t rank = 0; rank < ep_size; ++rank)
    ranks.push_back(*ExpertMap::place(num_experts, ep_size, rank, placement));
  return ranks;
}

void expect_each_expert_once(const std::vector<ExpertMap>& ranks) {
  EXPECT_TRUE(check_cover(ranks));
  for (const ExpertMap& rank : ranks) {
    EXPECT_LE(rank.num_local() - ranks.back().num_local(), 1);
    for (int64_t i = 0; i < rank.num_local(); ++i) EXPECT_EQ(rank.local()[rank.global()[i]], i);
  }
}

TEST(ExpertMap, HoldsEachExpertOnceForAnyRemainder) {
  for (int64_t experts : {1, 7, 16, 128}) {
    for (int64_t ep_size : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE(::testing::Message() << experts << " experts on " << ep_size << " ranks");
      expect_each_expert_once(all_ranks(experts, ep_size, Placement::kLinear));
      expect_each_expert_once(all_ranks(experts, ep_size, Placement::kRoundRobin));
    }
  }
}

TEST(ExpertMap, PlacesExpertsLinearlyOrRoundRobin) {
  const auto linear = all_ranks(7, 3, Placement::kLinear);
  EXPECT_THAT(linear[0].global(), ElementsAre(0, 1, 2));
  EXPECT_THAT(linear[1].global(), ElementsAre(3, 4));
  EXPECT_THAT(linear[2].global(), ElementsAre(5, 6));
  const auto round_robin = all_ranks(7, 3, Placement::kRoundRobin);
  EXPECT_THAT(round_robin[0].global(), ElementsAre(0, 3, 6));
  EXPECT_THAT(round_robin[1].local(), ElementsAre(-1, 0, -1, -1, 1, -1, -1));
  EXPECT_FALSE(round_robin[1].is_identity());
  EXPECT_TRUE(ExpertMap::all(7).is_identity());
}

TEST(ExpertMap, RejectsInvalidRanks) {
  EXPECT_THAT(ExpertMap::place(8, 2, 2).error().to_string(), HasSubstr("a rank from 0 to 1"));
  EXPECT_THAT(ExpertMap::place(8, 2, -1).error().to_string(), HasSubstr("it is -1"));
  EXPECT_THAT(ExpertMap::place(8, 0, 0).error().to_string(), HasSubstr("0 ranks"));
  EXPECT_THAT(ExpertMap::place(0, 1, 0).error().to_string(), HasSubstr("0 experts"));
}

TEST(ExpertMap, RejectsMapsThatMissOrRepeatALocalIndex) {
  EXPECT_THAT(ExpertMap::from({1, -1, 0})->global(), ElementsAre(2, 0));
  EXPECT_THAT(ExpertMap::from({0, 0, -1}).error().to_string(),
              HasSubstr("experts 0 and 1 both have 0"));
  EXPECT_THAT(ExpertMap::from({0, 2, -1}).error().to_string(), HasSubstr("expert 1 has 2"));
  EXPECT_THAT(ExpertMap::from({0, -2, 1}).error().to_string(), HasSubstr("expert 1 has -2"));
}

TEST(ExpertMap, CoversEveryExpertOnceOverAllRanks) {
  const ExpertMap left = *ExpertMap::from({0, 1, -1, -1}), right = *ExpertMap::from({-1, -1, 0, 1});
  const ExpertMap both[] = {left, right}, twice[] = {left, left, right}, one[] = {right};
  EXPECT_TRUE(check_cover(both));
  EXPECT_THAT(check_cover(twice).error().to_string(), HasSubstr("expert 0 is on ranks 0 and 1"));
  EXPECT_THAT(check_cover(one).error().to_string(), HasSubstr("expert 0 is on no rank"));
  const ExpertMap uneven[] = {left, ExpertMap::all(3)};
  EXPECT_THAT(check_cover(uneven).error().to_string(), HasSubstr("rank 1 has 3"));
}

TEST(ExpertMap, PlacementsHaveNames) {
  for (Placement placement : {Placement::kLinear, Placement::kRoundRobin})
    EXPECT_EQ(*parse_placement(name(placement)), placement);
  EXPECT_THAT(parse_placement("striped").error().to_string(), HasSubstr("'striped'"));
}

}  // namespace
}  // namespace moracle::expert_map_test
