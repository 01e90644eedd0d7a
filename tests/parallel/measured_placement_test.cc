// Experts on ranks of threads, placed by measured load.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "same_bits.h"

namespace moracle::measured_placement_test {
namespace {

using testing::golden_folder;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::options_on;

using Statistics = std::shared_ptr<const RoutingStatistics>;

// The statistics of a model's own reference text.
RoutingStatistics measured(const std::string& name, const std::shared_ptr<Group>& group = nullptr,
                           const Statistics& placed_by = nullptr) {
  ModelOptions options = options_on(group, true, Placement::kLinear);
  options.count_routing = true;
  options.measured_load = placed_by;
  Model model = *Model::load(*Checkpoint::open(golden_folder(name)), options);
  EXPECT_TRUE(testing::all_logits(model, testing::golden_reference(name).ids));
  return *model.routing_statistics();
}

// In each layer: the first expert is hot, so that its rank holds fewer experts than the others.
RoutingStatistics skewed(RoutingStatistics statistics) {
  for (auto& [layer, tokens] : statistics.tokens) {
    std::iota(tokens.begin(), tokens.end(), layer);
    tokens[layer % tokens.size()] = 1000;
  }
  return statistics;
}

void expect_bits_of_one_process(const std::string& name, int64_t size, const Statistics& load) {
  testing::expect_bits_of_one_process(
      name, size, [&](ModelOptions& options, const std::shared_ptr<Group>& group) {
        if (group) options.measured_load = load;
      });
}

TEST(MeasuredPlacement, RanksHaveTheBitsOfOneProcess) {
  for (const char* name : {"qwen3_moe", "deepseek_v3", "gpt_oss"}) {
    const RoutingStatistics own = measured(name);
    const auto real = std::make_shared<RoutingStatistics>(own),
               hot = std::make_shared<RoutingStatistics>(skewed(own));
    expect_bits_of_one_process(name, 2, real);
    expect_bits_of_one_process(name, 3, real);
    expect_bits_of_one_process(name, 3, hot);  // layers with other numbers of experts on a rank
  }
}

TEST(MeasuredPlacement, EachRankHoldsTheExpertsOfItsMap) {
  const auto load = std::make_shared<RoutingStatistics>(skewed(measured("qwen3_moe")));
  std::mutex mutex;
  on_ranks(3, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, false, Placement::kLinear);
    options.measured_load = load;
    const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    const std::lock_guard lock(mutex);
    ASSERT_TRUE(model) << model.error().to_string();
    for (const Choice& choice : model->choices()) {
      if (choice.part != "experts") continue;
      for (const int64_t layer : choice.layers) {
        const auto maps = *place_by_load(load->tokens.at(layer), 3);
        EXPECT_EQ(choice.selection.plan->experts.num_local(), maps[group->rank()].num_local());
      }
    }
  });
}

TEST(MeasuredPlacement, RanksCountWhatOneProcessCounts) {
  const RoutingStatistics alone = measured("qwen3_moe");
  const auto load = std::make_shared<RoutingStatistics>(skewed(alone));
  std::mutex mutex;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    const RoutingStatistics got = measured("qwen3_moe", group, load);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(got.tokens, alone.tokens);
  });
}

TEST(MeasuredPlacement, RankWithOtherStatisticsIsNamed) {
  const RoutingStatistics own = measured("qwen3_moe");
  std::string errors[2];
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    RoutingStatistics mine = own;
    mine.tokens.begin()->second[0] += group->rank();
    ModelOptions options = options_on(group, false, Placement::kLinear);
    options.measured_load = std::make_shared<RoutingStatistics>(mine);
    const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    if (!model) errors[group->rank()] = model.error().to_string();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1: needs a placement as on the other ranks: measured"));
  EXPECT_EQ(errors[0], errors[1]);
}

}  // namespace
}  // namespace moracle::measured_placement_test
