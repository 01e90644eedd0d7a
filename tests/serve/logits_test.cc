// Tests what the engine does with logits: penalties, biases, log probabilities.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "serve/engine/logit_edits.h"
#include "serve/engine/token_score.h"

namespace moracle::serve::logits_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(LogitEditor, AppliesEachEdit) {
  const std::vector<int32_t> prompt = {0, 1};
  LogitEditor editor(
      {.bias = {{3, 5}, {100, 1}}, .repetition = 2, .frequency = 0.5F, .presence = 1}, prompt);
  editor.add(1);
  editor.add(2);
  editor.add(2);
  std::vector<float> logits = {4, -4, 8, 0};
  editor.apply(logits);
  // In the prompt: 4 / 2. In both, once: -4 · 2 - 0.5 - 1. Generated twice: 8 / 2 - 2 · 0.5 - 1.
  EXPECT_THAT(logits, ElementsAre(2, -9.5F, 2, 5));
}

TEST(LogitEditor, RepetitionAppliesAfterBias) {
  LogitEditor editor({.bias = {{0, -3}}, .repetition = 2}, std::vector<int32_t>{0});
  std::vector<float> logits = {1};
  editor.apply(logits);
  EXPECT_EQ(logits[0], -4);
}

TEST(Scorer, GivesLogarithmsOfProbabilities) {
  const std::vector<float> logits = {std::log(1.F), std::log(2.F), std::log(5.F), -INFINITY};
  Scorer scorer;
  const TokenScore score = scorer.score(logits, 0, 2);
  EXPECT_NEAR(score.log_probability, std::log(1 / 8.), 1e-6);
  ASSERT_EQ(score.top.size(), 2u);
  EXPECT_EQ(score.top[0].first, 2);
  EXPECT_NEAR(score.top[0].second, std::log(5 / 8.), 1e-6);
  EXPECT_EQ(score.top[1].first, 1);
  EXPECT_TRUE(scorer.score(logits, 1, 0).top.empty());
  EXPECT_EQ(scorer.score(logits, 1, 9).top.size(), 4u);
}

}  // namespace
}  // namespace moracle::serve::logits_test
