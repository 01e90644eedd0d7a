// Tests a sequence that stays between generations: only what a prompt adds is computed.
#include <gtest/gtest.h>

#include "golden_model.h"
#include "support/model_words.h"

namespace moracle::kept_sequence_test {
namespace {

constexpr int64_t kCapacity = 64;

std::vector<int32_t> joined(std::vector<int32_t> first, const std::vector<int32_t>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

class KeptSequenceOf : public ::testing::TestWithParam<const char*> {
 protected:
  KeptSequenceOf()
      : checkpoint_(*Checkpoint::open(testing::golden_folder(GetParam()))),
        model_(*Model::load(
            checkpoint_,
            {.backend = testing::backend("cpu"), .threads = 2, .deterministic = true})),
        kept_{*model_.make_cache(kCapacity)} {}

  // Generates with the kept sequence and with a new one, which must give the same ids.
  Generation continued(const std::vector<int32_t>& prompt) {
    GenerateOptions options{.max_tokens = 6};
    const auto fresh = generate(model_, prompt, options);
    options.kept = &kept_;
    const auto kept = generate(model_, prompt, options);
    EXPECT_TRUE(kept) << kept.error().to_string();
    EXPECT_EQ(kept->ids, fresh->ids);
    EXPECT_EQ(fresh->reused_tokens, 0);
    EXPECT_EQ(static_cast<int64_t>(kept_.ids.size()), kept_.cache.length());
    return *kept;
  }

  const Checkpoint checkpoint_;
  Model model_;
  KeptSequence kept_;
};

TEST_P(KeptSequenceOf, ComputesOnlyWhatFollows) {
  const std::vector<int32_t> first = {1, 2, 3, 4, 5};
  const Generation answer = continued(first);
  EXPECT_EQ(answer.reused_tokens, 0);
  // The next turn begins with the first prompt and its answer. The last id was never run.
  const std::vector<int32_t> second = joined(joined(first, answer.ids), {7, 8});
  EXPECT_EQ(continued(second).reused_tokens, static_cast<int64_t>(first.size() + 5));
}

TEST_P(KeptSequenceOf, OtherPromptMatchesNewSequence) {
  continued({1, 2, 3, 4, 5});
  const int64_t shared = continued({1, 2, 3, 9, 9}).reused_tokens;
  // Recurrent layers can only start again.
  EXPECT_TRUE(shared == 3 || shared == 0) << shared;
  EXPECT_EQ(continued({8, 1, 2}).reused_tokens, 0);
  continued({8, 1, 2});
  continued({8});
}

TEST_P(KeptSequenceOf, RefusesPromptBeyondItsCapacityAndForeignIds) {
  GenerateOptions options{.max_tokens = 1, .kept = &kept_};
  const std::vector<int32_t> prompt(kCapacity + 1, 1);
  auto refused = generate(model_, prompt, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().to_string(),
            "prompt: needs at most the 64 tokens that the kept sequence has space for; it has 65");
  kept_.ids = {1};
  refused = generate(model_, std::vector<int32_t>{1, 2}, options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "kept sequence");
}

INSTANTIATE_TEST_SUITE_P(Models, KeptSequenceOf,
                         ::testing::Values("qwen3_moe", "qwen3_next", "granite_moe_hybrid",
                                           "deepseek_v2"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace moracle::kept_sequence_test
