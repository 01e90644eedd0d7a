// Routers on the CPU device with one and with three threads: which experts, how much each counts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu_ops_test.h"
#include "moracle/device.h"

namespace moracle::route_test {
namespace {

using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;

class RouteTest : public CpuOpsTest {};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Routed route(Ops& ops, std::vector<float> logits, int64_t num_experts, int64_t top_k,
             bool renormalize) {
  const auto tokens = static_cast<int64_t>(logits.size()) / num_experts;
  Routed routed{std::vector<int32_t>(tokens * top_k, -7), std::vector<float>(tokens * top_k, -7)};
  EXPECT_TRUE(ops.route(view(logits, tokens, num_experts), {.renormalize = renormalize}, nullptr,
                        top_k, routed.ids.data(), routed.weights.data(), {}));
  return routed;
}

TEST_P(RouteTest, PicksLargestSoftmaxScores) {
  for (auto [num_experts, top_k] : {std::pair{128, 8}, {16, 4}, {5, 1}, {1, 1}, {7, 7}}) {
    for (bool renormalize : {false, true}) {
      const int64_t tokens = 33;
      const std::vector<float> logits = normal(tokens * num_experts, 3);
      const Routed got = route(ops_, logits, num_experts, top_k, renormalize);
      for (int64_t t = 0; t < tokens; ++t) {
        const float* row = &logits[t * num_experts];
        std::vector<int> order(num_experts);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
        double all = 0, picked = 0;
        for (int e = 0; e < num_experts; ++e) all += std::exp(double{row[e]});
        for (int j = 0; j < top_k; ++j) picked += std::exp(double{row[order[j]]});
        for (int j = 0; j < top_k; ++j) {
          ASSERT_EQ(got.ids[t * top_k + j], order[j]);
          const double want = std::exp(double{row[order[j]]}) / (renormalize ? picked : all);
          ASSERT_NEAR(got.weights[t * top_k + j], want, want * (num_experts + 40) * kU);
        }
      }
    }
  }
}

TEST_P(RouteTest, TiesGoToLowerId) {
  // Equal: all; then a pair above the rest; then a late maximum before equal others.
  const std::vector<float> logits = {1, 1, 1, 1, 0, 2, 0, 2, 0, 0, 0, 5};
  const Routed got = route(ops_, logits, 4, 3, false);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 1, 3, 0, 3, 0, 1}));
  EXPECT_EQ(got.weights[0], 0.25f);
}

TEST_P(RouteTest, WeightsOfAllExpertsSumToOne) {
  const Routed got = route(ops_, normal(50 * 9, 2), 9, 9, false);
  for (int64_t t = 0; t < 50; ++t) {
    const auto* weights = &got.weights[t * 9];
    EXPECT_NEAR(std::accumulate(weights, weights + 9, 0.0), 1, 20 * kU);
    EXPECT_TRUE(std::is_sorted(weights, weights + 9, std::greater<>()));
    std::vector<int32_t> ids(&got.ids[t * 9], &got.ids[t * 9] + 9);
    std::sort(ids.begin(), ids.end());
    for (int32_t e = 0; e < 9; ++e) EXPECT_EQ(ids[e], e);
  }
}

TEST_P(RouteTest, HugeLogitsDoNotOverflow) {
  const Routed got = route(ops_, {1e30f, 3e38f, -3e38f, 3e38f}, 4, 4, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5f, 0.5f, 0, 0}));
}

// Scores that underflow to zero are still picked once each.
TEST_P(RouteTest, NeverPicksAnExpertTwice) {
  const Routed got = route(ops_, {0, -200, -300, -400, -INFINITY}, 5, 5, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST_P(RouteTest, NanLogitsGiveIdsInRange) {
  for (float wild : {NAN, INFINITY, -INFINITY}) {
    for (int at = 0; at < 6; ++at) {
      std::vector<float> logits = {1, 2, 3, 3, 2, 1};
      logits[at] = wild;
      for (int64_t top_k : {1, 3, 6}) {
        const Routed got = route(ops_, logits, 6, top_k, true);
        for (int32_t id : got.ids) {
          EXPECT_GE(id, 0);
          EXPECT_LT(id, 6);
        }
        // NaN must stay visible.
        if (!(wild < 0)) {
          EXPECT_TRUE(std::isnan(got.weights[0])) << wild << " at " << at;
        }
      }
    }
  }
  for (int32_t id : route(ops_, std::vector<float>(12, -INFINITY), 6, 4, false).ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, 6);
  }
}

// ---- sigmoid, biases, groups ----

/// By the definition: everything in double, everything sorted.
struct Chosen {
  std::vector<int64_t> ids;
  std::vector<double> weights;
};
Chosen by_definition(const float* logits, int64_t num_experts, const Routing& routing,
                     const std::vector<float>& bias, int64_t top_k) {
  std::vector<double> scores(num_experts), ranks(num_experts);
  double all = 0;
  for (int64_t e = 0; e < num_experts; ++e) all += std::exp(double{logits[e]});
  for (int64_t e = 0; e < num_experts; ++e) {
    const double l = logits[e];
    scores[e] = routing.score == Score::kSigmoid ? 1 / (1 + std::exp(-l)) : std::exp(l) / all;
    ranks[e] = scores[e] + (bias.empty() ? 0 : double{bias[e]});
  }
  const int64_t size = num_experts / routing.num_groups;
  std::vector<std::pair<double, int64_t>> groups;  // best rank first, lower group first
  for (int64_t g = 0; g < routing.num_groups; ++g) {
    std::vector<double> own(ranks.begin() + g * size, ranks.begin() + (g + 1) * size);
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(-(own[0] + (bias.empty() || size == 1 ? 0 : own[1])), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<double, int64_t>> allowed;
  for (int64_t i = 0; i < routing.top_groups; ++i) {
    for (int64_t e = groups[i].second * size; e < (groups[i].second + 1) * size; ++e)
      allowed.emplace_back(-ranks[e], e);
  }
  std::sort(allowed.begin(), allowed.end());
  Chosen chosen;
  double sum = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    chosen.ids.push_back(allowed[j].second);
    chosen.weights.push_back(scores[allowed[j].second]);
    sum += chosen.weights.back();
  }
  for (double& weight : chosen.weights) {
    if (routing.renormalize || routing.score == Score::kTopkThenSoftmax) weight /= sum;
    weight *= routing.scaling_factor;
  }
  return chosen;
}

TEST_P(RouteTest, MatchesDefinitionForEveryKindOfRouter) {
  constexpr int64_t kTokens = 37;
  const std::pair<int64_t, int64_t> groupings[] = {{1, 1}, {4, 2}, {8, 3}, {16, 16}};
  for (Score kind : {Score::kSoftmax, Score::kSigmoid, Score::kTopkThenSoftmax}) {
    for (auto [num_groups, top_groups] : groupings) {
      for (bool biased : {false, true}) {
        if (biased && kind == Score::kTopkThenSoftmax) continue;  // refused, below
        for (bool renormalize : {false, true}) {
          const int64_t num_experts = 16 * (num_groups == 16 ? 1 : 4), top_k = 4;
          const Routing routing{kind, renormalize, num_groups, top_groups, 2.5f, biased};
          SCOPED_TRACE(name(routing));
          const std::vector<float> logits = normal(kTokens * num_experts);
          const std::vector<float> bias = biased ? normal(num_experts, 0.2f) : std::vector<float>();
          std::vector<float> scratch = logits, weights(kTokens * top_k);
          std::vector<int32_t> ids(kTokens * top_k);
          ASSERT_TRUE(ops_.route(view(scratch, kTokens, num_experts), routing,
                                 biased ? bias.data() : nullptr, top_k, ids.data(), weights.data(),
                                 {}));
          for (int64_t t = 0; t < kTokens; ++t) {
            const Chosen want =
                by_definition(&logits[t * num_experts], num_experts, routing, bias, top_k);
            for (int64_t j = 0; j < top_k; ++j) {
              ASSERT_EQ(ids[t * top_k + j], want.ids[j]) << t << ", " << j;
              ASSERT_NEAR(weights[t * top_k + j], want.weights[j],
                          want.weights[j] * (num_experts + 60) * kU);
            }
          }
        }
      }
    }
  }
}

// The bias chooses and does not weigh.
TEST_P(RouteTest, WeightsExcludeScoreBias) {
  std::vector<float> logits = {0, 0, 0, 0}, bias = {0, 5, 0, 3}, weights(2);
  std::vector<int32_t> ids(2);
  ASSERT_TRUE(ops_.route(view(logits, 1, 4), {.score = Score::kSigmoid, .correction_bias = true},
                         bias.data(), 2, ids.data(), weights.data(), {}));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(weights, (std::vector<float>{0.5f, 0.5f}));
}

// A negative biased score must not lose to an expert of a group that was not chosen.
TEST_P(RouteTest, PicksOnlyFromChosenGroups) {
  std::vector<float> logits = {-8, -9, 1, 2}, bias = {-1, -1, -4, -4}, weights(2);
  std::vector<int32_t> ids(2);
  const Routing routing{Score::kSigmoid, true, 2, 1, 1, true};
  ASSERT_TRUE(
      ops_.route(view(logits, 1, 4), routing, bias.data(), 2, ids.data(), weights.data(), {}));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(weights[0] + weights[1], 1, 4 * kU);
}

TEST_P(RouteTest, VanishingScoresGiveZeroWeightsAndNoNan) {
  std::vector<float> logits(4, -1000.0f), weights(2);
  std::vector<int32_t> ids(2);
  ASSERT_TRUE(ops_.route(view(logits, 1, 4), {.score = Score::kSigmoid, .renormalize = true},
                         nullptr, 2, ids.data(), weights.data(), {}));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(weights, (std::vector<float>{0, 0}));
}

TEST_P(RouteTest, RejectsImpossibleArguments) {
  std::vector<float> logits(12), bias(12), weights(12);
  std::vector<int32_t> ids(12);
  auto refused = [&](const Routing& routing, const float* correction, int64_t top_k) {
    const Status status =
        ops_.route(view(logits, 1, 12), routing, correction, top_k, ids.data(), weights.data(), {});
    EXPECT_FALSE(status);
    return status ? std::string() : status.error().to_string();
  };
  EXPECT_THAT(refused({.num_groups = 5}, nullptr, 1), HasSubstr("groups that divide"));
  EXPECT_THAT(refused({.num_groups = 4, .top_groups = 5}, nullptr, 1), HasSubstr("5 of 4"));
  EXPECT_THAT(refused({.num_groups = 4, .top_groups = 2}, nullptr, 7), HasSubstr("1 to 6"));
  EXPECT_THAT(refused({}, nullptr, 13), HasSubstr("1 to 12"));
  EXPECT_THAT(refused({}, nullptr, 0), HasSubstr("it is 0"));
  EXPECT_THAT(refused({}, bias.data(), 1), HasSubstr("one is given"));
  EXPECT_THAT(refused({.correction_bias = true}, nullptr, 1), HasSubstr("none is given"));
  EXPECT_THAT(refused({.score = Score::kTopkThenSoftmax, .correction_bias = true}, bias.data(), 1),
              HasSubstr("before the top-k choice"));
}

TEST_P(RouteTest, ZeroTokensDoNothing) {
  std::vector<float> logits;
  EXPECT_TRUE(ops_.route(view(logits, 0, 4), {}, nullptr, 2, nullptr, nullptr, {}));
}

INSTANTIATE_TEST_SUITE_P(Threads, RouteTest, ::testing::Values(1, 3));

}  // namespace
}  // namespace moracle::route_test
