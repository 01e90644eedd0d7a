// Copies of hot experts on several ranks, which share their tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "dispatched_on_ranks.h"
#include "ranks_of_threads.h"
#include "support/sample.h"

namespace moracle::expert_copies_test {
namespace {

using testing::golden_folder;
using testing::golden_models;
using testing::golden_reference;
using ::testing::HasSubstr;
using testing::on_ranks;
using testing::options_on;
using testing::run_model;

using Statistics = std::shared_ptr<const RoutingStatistics>;

// In each layer one expert has nearly all tokens, another one most of the rest.
Statistics hot(const std::string& name) {
  ModelOptions options = options_on(nullptr, true, Placement::kLinear);
  options.count_routing = true;
  const Model model = *Model::load(*Checkpoint::open(golden_folder(name)), options);
  RoutingStatistics statistics = *model.routing_statistics();
  for (auto& [layer, tokens] : statistics.tokens) {
    std::iota(tokens.begin(), tokens.end(), 1);
    tokens[layer % tokens.size()] = 1000;
    tokens[(layer + 1) % tokens.size()] = 300;
  }
  return std::make_shared<const RoutingStatistics>(std::move(statistics));
}

void copy_hot(ModelOptions& options, const Statistics& load, int64_t redundant) {
  options.measured_load = load;
  options.num_redundant_experts = redundant;
}

int64_t largest_number_of_copies(const RoutingStatistics& load, int64_t size, int64_t redundant) {
  int64_t most = 0;
  for (const auto& [layer, tokens] : load.tokens) {
    std::vector<int64_t> copies(tokens.size());
    const std::vector<ExpertMap> maps = *place_by_load(tokens, size, redundant);
    for (const ExpertMap& map : maps)
      for (const int32_t e : map.global()) most = std::max(most, ++copies[e]);
  }
  return most;
}

std::string replicated_differs(const std::string& name, int64_t size, int64_t redundant,
                               bool deterministic) {
  const std::vector<int32_t> ids = golden_reference(name).ids;
  const Statistics load = hot(name);
  EXPECT_GT(largest_number_of_copies(*load, size, redundant), 1);
  const auto alone = run_model(name, options_on(nullptr, deterministic, Placement::kLinear), ids);
  if (!alone) return alone.error().to_string();
  std::mutex mutex;
  std::string errors;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, deterministic, Placement::kLinear);
    copy_hot(options, load, redundant);
    const auto got = run_model(name, options, ids);
    const std::lock_guard lock(mutex);
    if (!got) {
      group->abort(got.error());
      errors += got.error().to_string();
    } else if (deterministic) {
      if (got->logits != alone->logits) errors += "other logits";
      if (got->greedy != alone->greedy || got->drawn != alone->drawn) errors += "other tokens";
    } else if (!(testing::relative_difference(got->logits, alone->logits) <
                 testing::logit_bound(got->choices, alone->choices))) {
      errors += "logits differ";
    }
  });
  return errors;
}

std::string dispatched_differs(const std::string& name, int64_t size, int64_t redundant) {
  const Statistics load = hot(name);
  std::mutex mutex;
  std::string errors;
  on_ranks(size, [&](const std::shared_ptr<Group>& group) {
    const Status done = testing::check_dispatched(
        name, group, Placement::kLinear, "",
        [&](ModelOptions& options) { copy_hot(options, load, redundant); });
    if (done) return;
    group->abort(done.error());
    const std::lock_guard lock(mutex);
    errors += done.error().to_string();
  });
  return errors;
}

class ExpertCopies : public ::testing::TestWithParam<std::string> {};

TEST_P(ExpertCopies, ReplicatedRanksHaveTheBitsOfOneProcess) {
  if (!testing::has_experts(GetParam())) GTEST_SKIP() << "a model without experts";
  EXPECT_EQ(replicated_differs(GetParam(), 3, 3, true), "");
  EXPECT_EQ(replicated_differs(GetParam(), 3, 3, false), "");
}
TEST_P(ExpertCopies, DispatchedRanksHaveTheBitsOfOneProcess) {
  if (!testing::has_experts(GetParam())) GTEST_SKIP() << "a model without experts";
  EXPECT_EQ(dispatched_differs(GetParam(), 3, 3), "");
}
INSTANTIATE_TEST_SUITE_P(All, ExpertCopies,
                         ::testing::ValuesIn(testing::sample_of(golden_models(), "ExpertCopies")),
                         [](const auto& one) { return one.param; });

TEST(ExpertCopies, TwoAndFourRanksHaveTheBitsOfOneProcess) {
  EXPECT_EQ(replicated_differs("qwen3_moe", 2, 1, true), "");
  EXPECT_EQ(replicated_differs("deepseek_v3", 4, 9, true), "");
  EXPECT_EQ(dispatched_differs("qwen3_moe", 4, 5), "");
}

TEST(ExpertCopies, RanksHoldTheCopies) {
  const Statistics load = hot("qwen3_moe");
  std::mutex mutex;
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, false, Placement::kLinear);
    copy_hot(options, load, 2);
    const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    const std::lock_guard lock(mutex);
    ASSERT_TRUE(model) << model.error().to_string();
    for (const Choice& choice : model->choices()) {
      if (choice.part != "experts") continue;
      for (const int64_t layer : choice.layers) {
        const auto maps = *place_by_load(load->tokens.at(layer), 2, 2);
        EXPECT_GT(maps[0].num_local() + maps[1].num_local(), maps[0].num_experts());
        EXPECT_EQ(choice.selection.plan->experts.num_local(), maps[group->rank()].num_local());
      }
    }
  });
}

TEST(ExpertCopies, CopiesWithoutMeasuredLoadAreRefused) {
  ModelOptions options;
  options.parallel.ep_size = 2;
  options.num_redundant_experts = 1;
  const auto planned = plan(*Checkpoint::open(golden_folder("qwen3_moe")), options);
  ASSERT_FALSE(planned);
  EXPECT_THAT(planned.error().to_string(), HasSubstr("needs a placement by measured load"));
}

TEST(ExpertCopies, RanksWithOtherNumbersOfCopiesAreNamed) {
  const Statistics load = hot("qwen3_moe");
  std::string errors[2];
  on_ranks(2, [&](const std::shared_ptr<Group>& group) {
    ModelOptions options = options_on(group, false, Placement::kLinear);
    copy_hot(options, load, 1 + group->rank());
    const auto model = Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), options);
    if (!model) errors[group->rank()] = model.error().to_string();
  });
  EXPECT_THAT(errors[0], HasSubstr("2 redundant experts"));
  EXPECT_EQ(errors[0], errors[1]);
}

}  // namespace
}  // namespace moracle::expert_copies_test
