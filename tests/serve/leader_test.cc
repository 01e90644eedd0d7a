// Threads as ranks: tests rank 0's orders and the other ranks' reactions.
#include "serve/engine/ranks/leader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/ranks_of_threads.h"
#include "serve/engine/ranks/follow.h"
#include "serve/served_ranks.h"
#include "support/must.h"

namespace moracle::serve::leader_test {
namespace {

using ::testing::HasSubstr;
using testing::kServedFolder;
using testing::must;
using testing::served_model;
using testing::served_options;

Model load(const std::shared_ptr<Group>& group) {
  return served_model(served_options(group));
}

Status step(Leader& leader, SequenceId id, const std::vector<int32_t>& ids) {
  const SequenceStep one{id, ids, -1};
  return leader.forward({&one, 1});
}

TEST(Leader, SurvivesStepThatFailsOnAllRanks) {
  testing::on_ranks(2, [](const std::shared_ptr<Group>& group) {
    Model model = load(group);
    if (group->rank() > 0) {
      EXPECT_TRUE(follow(model, kServedFolder, served_options(group)));
      return;
    }
    Leader leader(model);
    ASSERT_TRUE(leader.start(1, 16, {}));
    EXPECT_TRUE(step(leader, 1, {5, 6}));
    EXPECT_THAT(step(leader, 1, {-1}).error().to_string(), HasSubstr("token id"));
    EXPECT_FALSE(leader.lost());
    EXPECT_TRUE(step(leader, 1, {7}));
    leader.drop(1);
    EXPECT_FALSE(step(leader, 1, {7}));
    ASSERT_TRUE(leader.start(2, 16, {}));
    EXPECT_TRUE(step(leader, 2, {7}));
    EXPECT_TRUE(leader.reload(kServedFolder));
    EXPECT_FALSE(leader.lost());
    leader.end();
  });
}

// Logits must stay equal after experts moved to the other rank.
TEST(Leader, MovedExpertsKeepLogits) {
  for (const Spread spread : {Spread::kReplicated, Spread::kDispatched}) {
    std::vector<float> logits[2];
    for (const bool moves : {false, true}) {
      testing::on_ranks(2, [&](const std::shared_ptr<Group>& group) {
        ModelOptions options = served_options(group);
        options.deterministic = options.count_routing = true;
        options.spread = spread;
        Model model = served_model(options);
        if (group->rank() > 0) {
          EXPECT_TRUE(follow(model, kServedFolder, options));
          return;
        }
        Leader leader(model);
        must(leader.start(1, 16, {}));
        must(step(leader, 1, {5, 6, 7}));
        const auto counted = must(leader.routing_statistics()).tokens;
        EXPECT_EQ(counted.size(), 3u);
        if (moves) {
          must(leader.open_moves(kServedFolder));
          for (auto& [layer, maps] : must(placement(model))) {
            std::reverse(maps.begin(), maps.end());
            must(leader.move_experts(layer, maps));
          }
          EXPECT_THAT(leader.move_experts(0, must(placement(model)).at(0)).error().to_string(),
                      HasSubstr("they have moved"));
          leader.end_moves();
          EXPECT_FALSE(leader.open_moves("/nowhere"));  // only on rank 0
          EXPECT_FALSE(leader.lost());
        }
        must(step(leader, 1, {8}));
        const auto got = must(leader.logits(0, 1));
        logits[moves].assign(got.begin(), got.end());
        leader.end();
      });
    }
    EXPECT_EQ(logits[0], logits[1]);
    EXPECT_FALSE(logits[0].empty());
  }
}

TEST(Leader, NamesRankThatContinuesAfterFailure) {
  testing::on_ranks(2, [](const std::shared_ptr<Group>& group) {
    Model model = load(group);
    if (group->rank() > 0) {  // ignores the error of the step
      (void)must(OrderReader::receive(*group));
      OrderReader compare = must(OrderReader::receive(*group));
      EXPECT_EQ(compare.order(), Order::kCompare);
      const std::byte went_on{0};
      std::vector<std::byte> all(2);
      EXPECT_TRUE(group->all_gather({&went_on, 1}, all));
      return;
    }
    Leader leader(model);
    ASSERT_TRUE(leader.start(1, 16, {}));
    EXPECT_FALSE(step(leader, 1, {-1}));
    ASSERT_TRUE(leader.lost());
    EXPECT_THAT(leader.lost()->to_string(),
                HasSubstr("rank 1: needs the same outcome as on rank 0"));
    EXPECT_FALSE(step(leader, 1, {5}));  // fails at once
  });
}

TEST(Follower, ReportsLocalErrorIfRank0Continues) {
  testing::on_ranks(2, [](const std::shared_ptr<Group>& group) {
    Model model = load(group);
    if (group->rank() > 0) {
      const Status done = follow(model, kServedFolder, served_options(group));
      ASSERT_FALSE(done);
      EXPECT_THAT(done.error().to_string(), HasSubstr("sequence 9: needs a running sequence"));
      return;
    }
    OrderWriter orders;
    for (int i = 0; i < 2; ++i) {
      orders.put(Order::kForward);
      for (const int64_t word : {1, 9, -1}) orders.put(word);  // one step, sequence, no adapter
      orders.put(std::span<const int32_t>());
      ASSERT_TRUE(orders.send(*group));
    }
  });
}

TEST(Orders, RoundTrip) {
  testing::on_ranks(3, [](const std::shared_ptr<Group>& group) {
    const std::vector<int32_t> ids = {1, -2, 3};
    const std::vector<int64_t> pages = {int64_t{1} << 40};
    if (group->rank() == 0) {
      OrderWriter orders;
      orders.put(Order::kAdapters);
      orders.put(std::string("nine char"));
      orders.put(std::string());
      orders.put(ids);
      orders.put(pages);
      ASSERT_TRUE(orders.send(*group));
      return;
    }
    OrderReader orders = must(OrderReader::receive(*group));
    EXPECT_EQ(orders.order(), Order::kAdapters);
    EXPECT_EQ(orders.text(), "nine char");
    EXPECT_EQ(orders.text(), "");
    EXPECT_EQ(orders.ids(), ids);
    EXPECT_EQ(orders.list(), pages);
    EXPECT_TRUE(orders.empty() && orders.is_whole());
    EXPECT_EQ(orders.word(), 0);
    EXPECT_FALSE(orders.is_whole());
  });
}

}  // namespace
}  // namespace moracle::serve::leader_test
