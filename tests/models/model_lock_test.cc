// Tests one model with several threads.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "models/golden_model.h"
#include "support/must.h"

namespace moracle::model_lock_test {
namespace {

using testing::golden_folder;

Model must_load() {
  return testing::must(Model::load(*Checkpoint::open(golden_folder("qwen3_moe")), {.threads = 2}));
}

std::vector<int32_t> continued(Model& model, const std::vector<int32_t>& prompt) {
  GenerateOptions options;
  options.max_tokens = 24;
  options.sampling = {.temperature = 1, .top_k = 9, .seed = 3};
  const auto done = generate(model, prompt, options);
  EXPECT_TRUE(done) << done.error().to_string();
  return done ? done->ids : std::vector<int32_t>();
}

TEST(ConcurrentModelCalls, MatchGenerateAndPerplexityRunAlone) {
  Model model = must_load();
  const std::vector<int32_t> prompts[] = {{1, 2, 3}, {7, 5}};
  const std::vector<int32_t> text = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  const std::vector<int32_t> alone[] = {continued(model, prompts[0]), continued(model, prompts[1])};
  const double nll = perplexity(model, text, 8)->nll;
  std::thread threads[2];
  int differ[2] = {};
  for (int t = 0; t < 2; ++t) {
    threads[t] = std::thread([&, t] {
      for (int round = 0; round < 4; ++round)
        differ[t] += continued(model, prompts[t]) != alone[t] ? 1 : 0;
    });
  }
  for (int round = 0; round < 4; ++round) EXPECT_EQ(perplexity(model, text, 8)->nll, nll);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differ[0], 0);
  EXPECT_EQ(differ[1], 0);
}

TEST(ConcurrentModelCalls, MatchSingleLogitsUnderCallerLock) {
  Model model = must_load();
  std::mutex mutex;
  const std::vector<int32_t> tokens[] = {{1, 2, 3, 4}, {9, 8, 7}};
  const auto last_logits = [&](const std::vector<int32_t>& ids) -> std::vector<float> {
    KvCache cache = *model.make_cache(8);
    const Model::Step step{ids, &cache};
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(model.forward({&step, 1}));
    const auto logits = model.logits(static_cast<int64_t>(ids.size()) - 1, 1);
    EXPECT_TRUE(logits);
    return logits ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  };
  const std::vector<float> alone[] = {last_logits(tokens[0]), last_logits(tokens[1])};
  int differ = 0;
  std::thread other([&] {
    for (int round = 0; round < 20; ++round) differ += last_logits(tokens[1]) != alone[1] ? 1 : 0;
  });
  for (int round = 0; round < 20; ++round) EXPECT_EQ(last_logits(tokens[0]), alone[0]);
  other.join();
  EXPECT_EQ(differ, 0);
}

}  // namespace
}  // namespace moracle::model_lock_test
