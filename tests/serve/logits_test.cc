// Tests the engine's log probabilities.
#include <gtest/gtest.h>

#include <cmath>

#include "serve/engine/token_score.h"

namespace moracle::serve::logits_test {
namespace {

TEST(Scorer, ReturnsLogProbabilities) {
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
