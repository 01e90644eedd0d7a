// Dispatched ranks as threads: each sequence runs on its owner, and rank 0 reads all logits.
#include "serve/engine/ranks/sequence_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/ranks_of_threads.h"
#include "serve/engine/ranks/follow.h"
#include "serve/engine/ranks/leader.h"
#include "serve/served_ranks.h"
#include "support/must.h"

namespace moracle::serve::sequence_ranks_test {
namespace {

using testing::kServedFolder;
using testing::must;
using testing::served_model;

ModelOptions options_of(const std::shared_ptr<Group>& group) {
  ModelOptions options = testing::served_options(group);
  options.deterministic = true;
  options.spread = Spread::kDispatched;
  return options;
}

Model load(const std::shared_ptr<Group>& group) {
  return served_model(options_of(group));
}

// Logits of each token of one sequence in a single process.
std::vector<float> logits_alone(const std::vector<int32_t>& ids) {
  Model model = load(nullptr);
  KvCache cache = must(model.make_cache(16));
  const Model::Step step{ids, &cache};
  EXPECT_TRUE(model.forward({&step, 1}));
  const auto logits = must(model.logits(0, static_cast<int64_t>(ids.size())));
  return {logits.begin(), logits.end()};
}

const std::vector<std::vector<int32_t>> kSequences = {{5, 6, 7}, {8}, {9, 10}, {11, 12}};

TEST(SequenceRanks, LogitsMatchOneProcessBitForBit) {
  std::vector<float> expected;
  for (const std::vector<int32_t>& ids : kSequences) {
    const std::vector<float> one = logits_alone(ids);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  for (const int64_t size : {2, 3, 6}) {  // with 6, two ranks have no sequence
    testing::on_ranks(size, [&](const std::shared_ptr<Group>& group) {
      Model model = load(group);
      if (group->rank() > 0) {
        EXPECT_TRUE(follow(model, kServedFolder, options_of(group)));
        return;
      }
      Leader leader(model);
      EXPECT_TRUE(leader.is_spread());
      EXPECT_FALSE(leader.can_share());
      std::vector<SequenceStep> steps;
      for (size_t i = 0; i < kSequences.size(); ++i) {
        ASSERT_TRUE(leader.start(static_cast<SequenceId>(i), 16, {}));
        steps.push_back({static_cast<SequenceId>(i), kSequences[i], -1});
      }
      ASSERT_TRUE(leader.forward(steps));
      const auto logits = must(leader.logits(0, 8));
      EXPECT_TRUE(std::equal(logits.begin(), logits.end(), expected.begin(), expected.end()));
      const auto vocab = static_cast<size_t>(model.vocab_size());
      const auto part = must(leader.logits(3, 2));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + 3 * vocab));
      leader.end();
    });
  }
}

TEST(SequenceRanks, AssignsSequencesToRankWithFewest) {
  testing::on_ranks(2, [](const std::shared_ptr<Group>& group) {
    Model model = load(group);
    SequenceRanks ranks(model);
    const bool first = group->rank() == 0;
    EXPECT_EQ(ranks.start(1), first);
    EXPECT_EQ(ranks.start(2), !first);
    EXPECT_EQ(ranks.start(3), first);
    ranks.drop(1);
    ranks.drop(3);
    ranks.drop(3);  // unknown id: ignored
    EXPECT_EQ(ranks.start(4), first);
    EXPECT_EQ(ranks.start(5), first);
    EXPECT_EQ(ranks.start(2), !first);  // keeps its owner
    EXPECT_TRUE(model.rest());
  });
}

TEST(SequenceRanks, FailedStepOnOneRankIsFatal) {
  testing::on_ranks(2, [](const std::shared_ptr<Group>& group) {
    Model model = load(group);
    if (group->rank() > 0) {
      const Status done = follow(model, kServedFolder, options_of(group));
      ASSERT_FALSE(done);
      EXPECT_THAT(done.error().to_string(), ::testing::HasSubstr("token id"));
      group->abort(done.error());
      return;
    }
    Leader leader(model);
    ASSERT_TRUE(leader.start(1, 16, {}));
    ASSERT_TRUE(leader.start(2, 16, {}));
    const std::vector<int32_t> good{5}, bad{-1};
    const std::vector<SequenceStep> steps = {{1, good, -1}, {2, bad, -1}};
    EXPECT_FALSE(leader.forward(steps));
    ASSERT_TRUE(leader.lost());
    EXPECT_THAT(leader.lost()->to_string(), ::testing::HasSubstr("rank 1"));
    EXPECT_FALSE(leader.logits(0, 1));
  });
}

}  // namespace
}  // namespace moracle::serve::sequence_ranks_test
