// Compares DRY with its definition, computed by comparing every pair of places.
#include "models/generation/dry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "models/generation/logit_edits.h"
#include "models/generation/sampler.h"
#include "paths.h"
#include "support/must.h"

namespace moracle::dry_test {
namespace {

using ::testing::ElementsAre;
using testing::must;

bool is_breaker(const DryOptions& options, int32_t id) {
  return std::find(options.breaker_ids.begin(), options.breaker_ids.end(), id) !=
         options.breaker_ids.end();
}

// For each id: the largest n so that the last n tokens also stand before an earlier occurrence of
// it, without a breaker among them.
std::map<int32_t, int64_t> repetitions(const DryOptions& options, std::vector<int32_t> tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  const int64_t first =
      options.penalty_last_n < 0 ? 0 : std::max<int64_t>(size - options.penalty_last_n, 0);
  std::map<int32_t, int64_t> longest;
  for (int64_t at = first + 1; at < size; ++at) {
    int64_t length = 0;
    while (at - length - 1 >= first && tokens[at - length - 1] == tokens[size - length - 1] &&
           !is_breaker(options, tokens[size - length - 1]))
      ++length;
    if (length >= options.allowed_length && !is_breaker(options, tokens[at]))
      longest[tokens[at]] = std::max(longest[tokens[at]], length);
  }
  return longest;
}

TEST(Dry, MatchesDefinitionOnRandomTokens) {
  std::mt19937 random(5);
  int num_lowered = 0;
  for (int round = 0; round < 300; ++round) {
    DryOptions options{.multiplier = 0.8F, .base = 1.5F};
    options.allowed_length = 1 + static_cast<int64_t>(random() % 4);
    options.penalty_last_n = round % 3 == 0 ? static_cast<int64_t>(random() % 40) + 1 : -1;
    if (round % 2 == 0) options.breaker_ids = {0, 3};
    std::vector<int32_t> tokens(random() % 80);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    std::vector<float> logits = {1, 2, 3, 4}, wanted = logits;
    for (const auto& [id, length] : repetitions(options, tokens)) {
      wanted[id] -= options.multiplier *
                    std::pow(options.base, static_cast<float>(length - options.allowed_length));
      ++num_lowered;
    }
    apply_dry(options, tokens, logits);
    for (size_t id = 0; id < logits.size(); ++id)
      EXPECT_NEAR(logits[id], wanted[id], 1e-5F * std::abs(wanted[id])) << round;
  }
  EXPECT_GT(num_lowered, 100);
}

TEST(Dry, LongRepetitionKeepsLogitsFinite) {
  const std::vector<int32_t> tokens(5000, 1);
  std::vector<float> logits(3, 0);
  apply_dry({.multiplier = 1}, tokens, logits);
  EXPECT_TRUE(std::isfinite(logits[1]));
  EXPECT_LT(logits[1], -1e30F);
}

TEST(Dry, EditorCountsGeneratedTokens) {
  const std::vector<int32_t> prompt = {1, 2, 3, 1, 2};
  LogitEditor editor({.dry = {.multiplier = 2, .base = 3}}, prompt, {});
  EXPECT_FALSE(editor.changes_nothing());
  std::vector<float> logits(5, 0);
  editor.apply(logits);
  EXPECT_THAT(logits, ElementsAre(0, 0, 0, -2, 0));  // two tokens repeat: the allowed length
  editor.add(3);
  logits.assign(5, 0);
  editor.apply(logits);
  EXPECT_THAT(logits, ElementsAre(0, -6, 0, 0, 0));
}

TEST(Dry, RejectsValuesOutOfRange) {
  EXPECT_TRUE(check(DryOptions{}).ok());
  for (const DryOptions& wrong :
       {DryOptions{.multiplier = -1}, DryOptions{.multiplier = NAN}, DryOptions{.base = 0.5F},
        DryOptions{.allowed_length = 0}, DryOptions{.penalty_last_n = -2},
        DryOptions{.breaker_ids = {3, 1}}})
    EXPECT_FALSE(check(wrong).ok());
}

TEST(Dry, BreakersAreAllTokensThatContainOne) {
  const Tokenizer tokenizer =
      must(Tokenizer::open(testing::models_dir() + "/qwen3moe-gptq-int4-g128"));
  const std::vector<std::string> texts = {":", "\n"};
  const std::vector<int32_t> ids = must(ids_of_breakers(tokenizer, texts));
  EXPECT_GE(ids.size(), 2u);
  for (const int32_t id : ids) {
    const std::string text = must(tokenizer.decode({&id, 1}));
    EXPECT_NE(text.find_first_of(":\n"), std::string::npos) << text;
  }
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_TRUE(must(ids_of_breakers(tokenizer, {})).empty());
}

// The probabilities of these logits are 0.4, 0.3, 0.2 and 0.1.
const std::vector<float> kXtcLogits = {std::log(4.0F), std::log(3.0F), std::log(2.0F), 0};

std::map<int32_t, int> draws(SamplingOptions options, int count = 4000) {
  options.temperature = 1;
  Sampler sampler(options);
  std::map<int32_t, int> found;
  for (int i = 0; i < count; ++i) ++found[sampler.draw(kXtcLogits).value_or(-1)];
  return found;
}

TEST(Xtc, OnlyTheLeastLikelyTokenAboveThresholdStays) {
  for (const int64_t top_k : {0, 4}) {
    // 0.4 and 0.3 reach the threshold, so 0.4 is dropped: 0.5, 1/3 and 1/6 are left.
    auto found = draws({.top_k = top_k, .xtc_probability = 1, .xtc_threshold = 0.25F});
    EXPECT_EQ(found[0], 0);
    EXPECT_NEAR(found[1], 2000, 150);
    EXPECT_NEAR(found[2], 1333, 150);
    EXPECT_NEAR(found[3], 667, 150);
    found = draws({.top_k = top_k, .xtc_probability = 1, .xtc_threshold = 0.05F});
    EXPECT_EQ(found[3], 4000);
    // One token alone stays.
    found = draws({.top_k = top_k, .xtc_probability = 1, .xtc_threshold = 0.35F});
    EXPECT_NEAR(found[0], 1600, 150);
  }
}

TEST(Xtc, ActsWithItsProbability) {
  // Half of the draws leave out the first token, which the others draw with 0.4.
  auto found = draws({.xtc_probability = 0.5F, .xtc_threshold = 0.25F});
  EXPECT_NEAR(found[0], 800, 150);
}

TEST(Xtc, GreedyDrawsIgnoreIt) {
  Sampler sampler({.xtc_probability = 1, .xtc_threshold = 0.1F});
  EXPECT_EQ(sampler.draw(kXtcLogits), 0);
  EXPECT_FALSE(check(SamplingOptions{.xtc_probability = 1.5F}).ok());
  EXPECT_FALSE(check(SamplingOptions{.xtc_threshold = -0.5F}).ok());
}

}  // namespace
}  // namespace moracle::dry_test
