// Tests routers on every device against their definition in double: which experts, with which
// weights.
#include <algorithm>
#include <numeric>

#include "kernels/ops/device_ops.h"

namespace moracle::route_test {
namespace {

using ::testing::HasSubstr;

constexpr double kU = 0x1p-24;

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
class Route : public testing::DeviceOpsTest {
 protected:
  /// Routes every row of `logits`, which hold the same numbers in the type of activations.
  Routed route(const std::vector<float>& logits, int64_t num_experts, int64_t top_k,
               const Routing& routing, const std::vector<float>& bias = {}) {
    const auto tokens = static_cast<int64_t>(logits.size()) / num_experts;
    int32_t* const ids = upload(std::vector<int32_t>(tokens * top_k, -7));
    float* const weights = upload(std::vector<float>(tokens * top_k, -7));
    expect_done(ops().route(matrix(logits, tokens, num_experts), routing,
                            bias.empty() ? nullptr : upload(bias), top_k, ids, weights, {}));
    return {download(ids, tokens * top_k), download(weights, tokens * top_k)};
  }
  Routed route(const std::vector<float>& logits, int64_t num_experts, int64_t top_k,
               bool renormalize) {
    return route(logits, num_experts, top_k, Routing{.renormalize = renormalize});
  }
};

void expect_in_range(const std::vector<int32_t>& ids, int32_t num_experts) {
  for (const int32_t id : ids) {
    EXPECT_GE(id, 0);
    EXPECT_LT(id, num_experts);
  }
}

TEST_P(Route, PicksLargestSoftmaxScores) {
  for (auto [num_experts, top_k] : {std::pair{128, 8}, {16, 4}, {5, 1}, {1, 1}, {7, 7}}) {
    for (bool renormalize : {false, true}) {
      const int64_t tokens = 33;
      const std::vector<float> logits = normal(tokens * num_experts, 3);
      const Routed got = route(logits, num_experts, top_k, renormalize);
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
          ASSERT_NEAR(got.weights[t * top_k + j], want,
                      f32_bound(want, want * (num_experts + 40) * kU));
        }
      }
    }
  }
}

TEST_P(Route, TiesGoToLowerId) {
  // All equal; then one pair above the rest; then a late maximum before equal others.
  const std::vector<float> logits = {1, 1, 1, 1, 0, 2, 0, 2, 0, 0, 0, 5};
  const Routed got = route(logits, 4, 3, false);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 1, 3, 0, 3, 0, 1}));
  EXPECT_EQ(got.weights[0], 0.25f);
}

TEST_P(Route, WeightsOfAllExpertsSumToOne) {
  const Routed got = route(normal(50 * 9, 2), 9, 9, false);
  for (int64_t t = 0; t < 50; ++t) {
    const auto* weights = &got.weights[t * 9];
    EXPECT_NEAR(std::accumulate(weights, weights + 9, 0.0), 1, f32_bound(1, 20 * kU));
    EXPECT_TRUE(std::is_sorted(weights, weights + 9, std::greater<>()));
    std::vector<int32_t> ids(&got.ids[t * 9], &got.ids[t * 9] + 9);
    std::sort(ids.begin(), ids.end());
    for (int32_t e = 0; e < 9; ++e) EXPECT_EQ(ids[e], e);
  }
}

TEST_P(Route, HugeLogitsDoNotOverflow) {
  const Routed got = route({1e30f, 3e38f, -3e38f, 3e38f}, 4, 4, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5f, 0.5f, 0, 0}));
}

// Scores that underflow to zero are still picked once each.
TEST_P(Route, NeverPicksAnExpertTwice) {
  const Routed got = route({0, -200, -300, -400, -INFINITY}, 5, 5, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST_P(Route, NanLogitsGiveIdsInRangeAndNanWeights) {
  for (float wild : {NAN, INFINITY, -INFINITY}) {
    for (int at = 0; at < 6; ++at) {
      SCOPED_TRACE(::testing::Message() << wild << " at " << at);
      std::vector<float> logits = {1, 2, 3, 3, 2, 1};
      logits[at] = wild;
      for (int64_t top_k : {1, 3, 6}) {
        const Routed got = route(logits, 6, top_k, true);
        expect_in_range(got.ids, 6);
        // NaN must remain visible in the result.
        if (!(wild < 0)) {
          EXPECT_TRUE(std::isnan(got.weights[0]));
        }
      }
    }
  }
  expect_in_range(route(std::vector<float>(12, -INFINITY), 6, 4, false).ids, 6);
}

TEST_P(Route, AllNanLogitsGiveDistinctExperts) {
  std::vector<int32_t> ids = route(std::vector<float>(20, NAN), 20, 4, false).ids;
  expect_in_range(ids, 20);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
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
    scores[e] = routing.score == Score::kSigmoid        ? 1 / (1 + std::exp(-l))
                : routing.score == Score::kSqrtSoftplus ? std::sqrt(std::log1p(std::exp(l)))
                                                        : std::exp(l) / all;
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

struct RouterCase {
  const char* name;
  Score score;
  bool biased;
};
constexpr RouterCase kRouters[] = {{"softmax", Score::kSoftmax, false},
                                   {"softmax with bias", Score::kSoftmax, true},
                                   {"sigmoid", Score::kSigmoid, false},
                                   {"sigmoid with bias", Score::kSigmoid, true},
                                   {"sqrt softplus", Score::kSqrtSoftplus, false},
                                   {"sqrt softplus with bias", Score::kSqrtSoftplus, true},
                                   {"top-k, then softmax", Score::kTopkThenSoftmax, false}};
struct Grouping {
  int64_t num_experts, num_groups, top_groups, top_k;
};
constexpr Grouping kGroupings[] = {{64, 1, 1, 4},   {64, 4, 2, 4}, {64, 8, 3, 4},
                                   {16, 16, 16, 4}, {96, 1, 1, 6}, {96, 8, 3, 6}};

TEST_P(Route, MatchesDefinitionForEveryKindOfRouter) {
  constexpr int64_t kTokens = 40;
  for (const RouterCase& c : kRouters) {
    for (const Grouping& g : kGroupings) {
      for (const bool renormalize : {false, true}) {
        const Routing routing{c.score, renormalize, g.num_groups, g.top_groups, 2.5f, c.biased};
        SCOPED_TRACE(::testing::Message()
                     << c.name << ": " << name(routing) << ", " << g.num_experts << " experts");
        std::vector<float> logits = normal(kTokens * g.num_experts);
        std::fill_n(logits.begin(), g.num_experts, 0.25f);  // equal scores: the lower id first
        const std::vector<float> bias =
            c.biased ? testing::normal_floats(random_, g.num_experts, 0.2f) : std::vector<float>();
        const Routed got = route(logits, g.num_experts, g.top_k, routing, bias);
        int swapped = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
          const Chosen want =
              by_definition(&logits[t * g.num_experts], g.num_experts, routing, bias, g.top_k);
          for (int64_t j = 0; j < g.top_k; ++j) {
            if (got.ids[t * g.top_k + j] != want.ids[j]) {
              ++swapped;
              continue;
            }
            const double cpu = want.weights[j] * static_cast<double>(g.num_experts + 60) * kU;
            ASSERT_NEAR(got.weights[t * g.top_k + j], want.weights[j],
                        f32_bound(want.weights[j], cpu))
                << "token " << t << ", choice " << j;
          }
        }
        // Exponentials of a GPU differ in the last place, so neighbours in rank may swap.
        EXPECT_LE(swapped, c.biased && !is_cpu() ? 2 : 0);
      }
    }
  }
}

// Hash layers: the id of a token chooses its experts, and the scores only weigh them.
TEST_P(Route, TableOfTokenIdsChoosesExperts) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL has no kernels for it";
  constexpr int64_t kTokens = 40, kVocabulary = 11;
  for (const auto& [num_experts, top_k] : {std::pair<int64_t, int64_t>{8, 2}, {300, 40}}) {
    std::vector<int32_t> table, ids, order(num_experts);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t id = 0; id < kVocabulary; ++id) {
      std::shuffle(order.begin(), order.end(), random_);
      table.insert(table.end(), order.begin(), order.begin() + top_k);
    }
    for (int64_t t = 0; t < kTokens; ++t) ids.push_back(static_cast<int32_t>(t * 7 % kVocabulary));
    for (const Score score : {Score::kSqrtSoftplus, Score::kSigmoid, Score::kSoftmax}) {
      for (const bool renormalize : {false, true}) {
        const Routing routing{score, renormalize, 1, 1, 1.5f};
        SCOPED_TRACE(::testing::Message() << name(routing) << ", " << num_experts << " experts");
        const std::vector<float> logits = normal(kTokens * num_experts, 2);
        int32_t* const got_ids = upload(std::vector<int32_t>(kTokens * top_k, -7));
        float* const got_weights = upload(std::vector<float>(kTokens * top_k, -7));
        expect_done(ops().route_by_token(matrix(logits, kTokens, num_experts), routing,
                                         {upload(table)}, upload(ids), top_k, got_ids, got_weights,
                                         {}));
        const std::vector<int32_t> chosen = download(got_ids, kTokens * top_k);
        const std::vector<float> weights = download(got_weights, kTokens * top_k);
        for (int64_t t = 0; t < kTokens; ++t) {
          const float* const own = &logits[t * num_experts];
          double all = 0, sum = 0;
          for (int64_t e = 0; e < num_experts; ++e) all += std::exp(double{own[e]});
          const auto weight = [&](int64_t e) {
            const double l = own[e];
            return score == Score::kSigmoid        ? 1 / (1 + std::exp(-l))
                   : score == Score::kSqrtSoftplus ? std::sqrt(std::log1p(std::exp(l)))
                                                   : std::exp(l) / all;
          };
          for (int64_t j = 0; j < top_k; ++j) sum += weight(table[ids[t] * top_k + j]);
          for (int64_t j = 0; j < top_k; ++j) {
            const int32_t expert = table[ids[t] * top_k + j];
            ASSERT_EQ(chosen[t * top_k + j], expert);
            const double want = 1.5 * weight(expert) / (renormalize ? sum : 1);
            ASSERT_NEAR(weights[t * top_k + j], want,
                        f32_bound(want, want * static_cast<double>(num_experts + 60) * kU));
          }
        }
      }
    }
  }
}

// Each choice has its own softmax, over the logits near the largest remaining one.
TEST_P(Route, SparseMixerWeighsEachChoiceAmongNearLogits) {
  constexpr int64_t kTokens = 50;
  for (const int64_t num_experts : {2, 6, 16, 70}) {
    for (const float jitter : {0.01f, 0.3f}) {
      SCOPED_TRACE(::testing::Message() << num_experts << " experts, jitter " << jitter);
      const Routing routing{.score = Score::kSparseMixer, .jitter = jitter};
      const std::vector<float> logits = normal(kTokens * num_experts);
      const Routed got = route(logits, num_experts, 2, routing);
      int64_t skipped = 0, shared = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        std::vector<double> row(&logits[t * num_experts], &logits[t * num_experts] + num_experts);
        for (int64_t j = 0; j < 2; ++j) {
          const auto best = std::max_element(row.begin(), row.end());
          const double most = *best;
          double sum = 0;
          bool at_edge = false;  // a rounded value may be on either side of the edge
          for (const double logit : row) {
            const double far =
                (most - logit) / std::max(std::fabs(logit), most) - 2 * double{jitter};
            at_edge |= std::fabs(far) < 1e-6;
            if (!(far > 0)) sum += std::exp(logit - most);
          }
          ASSERT_EQ(got.ids[2 * t + j], best - row.begin());
          shared += sum > 1 ? 1 : 0;
          if (at_edge)
            ++skipped;
          else
            ASSERT_NEAR(got.weights[2 * t + j], 1 / sum, f32_bound(1 / sum, 80 * kU)) << t;
          *best = -INFINITY;
        }
      }
      EXPECT_LE(skipped, 2);
      EXPECT_TRUE(shared > 5 || jitter < 0.1f);
    }
  }
}

TEST_P(Route, SparseMixerTakesLowerIdsOfEqualLogits) {
  const Routed got = route({2, 2, 2, 2, 0, 0, 0, -3}, 4, 2,
                           {.score = Score::kSparseMixer, .scaling_factor = 2, .jitter = 0.01f});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(got.weights[0], 0.5f);
  EXPECT_NEAR(got.weights[1], 2.0 / 3, f32_bound(1, 8 * kU));
}

// The bias affects the choice, but not the weight.
TEST_P(Route, WeightsExcludeScoreBias) {
  const Routed got =
      route({0, 0, 0, 0}, 4, 2, {.score = Score::kSigmoid, .correction_bias = true}, {0, 5, 0, 3});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5f, 0.5f}));
}

// A negative biased score must not lose to an expert of a group that was not chosen.
TEST_P(Route, PicksOnlyFromChosenGroups) {
  const Routed got =
      route({-8, -9, 1, 2}, 4, 2, {Score::kSigmoid, true, 2, 1, 1, true}, {-1, -1, -4, -4});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(got.weights[0] + got.weights[1], 1, f32_bound(1, 4 * kU));
}

TEST_P(Route, VanishingScoresGiveZeroWeightsAndNoNan) {
  const Routed got =
      route(std::vector<float>(4, -1000.0f), 4, 2, {.score = Score::kSigmoid, .renormalize = true});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(got.weights, (std::vector<float>{0, 0}));
}

TEST_P(Route, RejectsImpossibleArguments) {
  const Matrix logits = matrix(std::vector<float>(12), 1, 12);
  float* const bias = upload(std::vector<float>(12));
  float* const weights = upload(std::vector<float>(12));
  int32_t* const ids = upload(std::vector<int32_t>(12));
  auto refused = [&](const Routing& routing, const float* correction, int64_t top_k) {
    const Status status = ops().route(logits, routing, correction, top_k, ids, weights, {});
    EXPECT_FALSE(status);
    return status ? std::string() : status.error().to_string();
  };
  EXPECT_THAT(refused({.num_groups = 5}, nullptr, 1), HasSubstr("groups that divide"));
  EXPECT_THAT(refused({.num_groups = 4, .top_groups = 5}, nullptr, 1), HasSubstr("5 of 4"));
  EXPECT_THAT(refused({.num_groups = 4, .top_groups = 2}, nullptr, 7), HasSubstr("1 to 6"));
  EXPECT_THAT(refused({}, nullptr, 13), HasSubstr("1 to 12"));
  EXPECT_THAT(refused({}, nullptr, 0), HasSubstr("it is 0"));
  EXPECT_THAT(refused({}, bias, 1), HasSubstr("one is given"));
  EXPECT_THAT(refused({.correction_bias = true}, nullptr, 1), HasSubstr("none is given"));
  EXPECT_THAT(refused({.score = Score::kUnknown}, nullptr, 1),
              HasSubstr("a known score function; it is unknown"));
  EXPECT_THAT(refused({.score = Score::kTopkThenSoftmax, .correction_bias = true}, bias, 1),
              HasSubstr("before the top-k choice"));
  EXPECT_THAT(refused({.score = Score::kSparseMixer}, nullptr, 3),
              HasSubstr("two of all experts for each token"));
}

TEST_P(Route, ZeroTokensDoNothing) {
  expect_done(ops().route(blank(0, 4), {}, nullptr, 2, nullptr, nullptr, {}));
}

MORACLE_ON_EVERY_DEVICE(Route);

}  // namespace
}  // namespace moracle::route_test
