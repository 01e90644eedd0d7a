// Tensor-parallel lm_head with threads as ranks: rank 0 samples from the logits of all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/ranks_of_threads.h"
#include "serve/engine/ranks/follow.h"
#include "serve/engine/ranks/leader.h"
#include "serve/served_ranks.h"
#include "support/must.h"

namespace moracle::serve::vocab_parallel_test {
namespace {

using testing::kServedFolder;
using testing::must;
using testing::served_model;

ModelOptions options_of(const std::shared_ptr<Group>& group) {
  ModelOptions options = testing::served_options(group);
  options.deterministic = true;
  options.lm_head_size = options.parallel.ep_size;
  return options;
}

// Logits and samples of rank 0, or of a single process.
struct Read {
  std::vector<float> logits;
  std::vector<int32_t> drawn;
  bool operator==(const Read&) const = default;
};

Read read(Model& model) {
  Leader leader(model);
  const std::vector<int32_t> ids = {5, 6, 7, 8};
  const SequenceStep step{1, ids, -1};
  EXPECT_TRUE(leader.start(1, 16, {}));
  EXPECT_TRUE(leader.forward({&step, 1}));
  Read read;
  const auto logits = must(leader.logits(1, 3));
  read.logits.assign(logits.begin(), logits.end());
  // Greedy and top-k sampling read only the largest logits; the last two samplers read all.
  SamplingOptions greedy, top_k{.temperature = 0.9f, .top_k = 7, .seed = 3},
      all{.temperature = 0.9f, .seed = 5}, excluded;
  int32_t best = 0;
  std::vector<Sampler> one{Sampler(greedy)};
  EXPECT_TRUE(draw(model, leader, 3, one, {&best, 1}));
  excluded.excluded_ids = {best};
  for (const SamplingOptions& options : {greedy, top_k, all, excluded}) {
    int32_t id = 0;
    std::vector<Sampler> sampler{Sampler(options)};
    EXPECT_TRUE(draw(model, leader, 3, sampler, {&id, 1}));
    read.drawn.push_back(id);
  }
  EXPECT_NE(read.drawn.back(), best);
  leader.end();
  return read;
}

TEST(VocabParallelServing, MatchesOneProcessBitForBit) {
  Model alone = served_model(options_of(nullptr));
  const Read expected = read(alone);
  for (const int64_t size : {2, 3}) {
    testing::on_ranks(size, [&](const std::shared_ptr<Group>& group) {
      Model model = served_model(options_of(group));
      if (group->rank() > 0) {
        EXPECT_TRUE(follow(model, kServedFolder, options_of(group)));
        return;
      }
      EXPECT_TRUE(read(model) == expected);
    });
  }
}

}  // namespace
}  // namespace moracle::serve::vocab_parallel_test
