// Tests the public route() on every device against the definition of each score function in double.
#include <algorithm>
#include <cmath>

#include "kernels/ops/device_ops.h"
#include "moracle/moe.h"

namespace moracle::public_route_test {
namespace {

using ::testing::HasSubstr;

struct Choices {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

// Experts of one token in order of choice: each time the largest remaining rank.
Choices by_definition(std::vector<double> logits, const Routing& routing,
                      const std::vector<float>& bias, const std::vector<float>& scales,
                      int64_t top_k) {
  const auto count = static_cast<int64_t>(logits.size());
  std::vector<double> scores(count), ranks(count);
  double all = 0;
  for (const double logit : logits) all += std::exp(logit);
  for (int64_t e = 0; e < count; ++e) {
    scores[e] = routing.score == Score::kSigmoid ? 1 / (1 + std::exp(-logits[e]))
                                                 : std::exp(logits[e]) / all;
    ranks[e] = scores[e] + (bias.empty() ? 0 : bias[e]);
  }
  // A group's rank is the sum of its two best ranks with a bias, else its best one.
  const int64_t size = count / routing.num_groups;
  std::vector<std::pair<double, int64_t>> groups;
  for (int64_t g = 0; g < routing.num_groups; ++g) {
    std::vector<double> own(ranks.begin() + g * size, ranks.begin() + (g + 1) * size);
    std::sort(own.rbegin(), own.rend());
    groups.emplace_back(-own[0] - (bias.empty() ? 0 : own[1]), g);
  }
  std::sort(groups.begin(), groups.end());
  for (int64_t i = routing.top_groups; i < routing.num_groups; ++i)
    std::fill_n(ranks.begin() + groups[i].second * size, size, -INFINITY);

  Choices choices;
  double sum = 0;
  for (int64_t j = 0; j < top_k; ++j) {
    const auto best = std::max_element(ranks.begin(), ranks.end()) - ranks.begin();
    double weight = scores[best];
    if (routing.score == Score::kSparseMixer) {
      const double most = logits[best];
      double near = 0;
      for (const double logit : logits) {
        const double far = (most - logit) / std::max(std::fabs(logit), most);
        if (far <= 2 * routing.jitter) near += std::exp(logit - most);
      }
      weight = 1 / near;
      logits[best] = -INFINITY;
    }
    choices.ids.push_back(static_cast<int32_t>(best));
    choices.weights.push_back(weight);
    sum += weight;
    ranks[best] = -INFINITY;
  }
  for (int64_t j = 0; j < top_k; ++j) {
    double& weight = choices.weights[j];
    if (routing.renormalize || routing.score == Score::kTopkThenSoftmax) weight /= sum;
    weight *= routing.scaling_factor * (scales.empty() ? 1 : scales[choices.ids[j]]);
  }
  return choices;
}

class PublicRoute : public testing::DeviceOpsTest {
 protected:
  static constexpr int64_t kTokens = 20, kExperts = 16;

  // Logits that every dtype holds exactly, no two of one token equal.
  std::vector<float> spaced_logits() {
    std::vector<float> logits;
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<float> row;
      for (int64_t e = 0; e < kExperts; ++e) row.push_back(static_cast<float>(e - 7) / 4);
      std::shuffle(row.begin(), row.end(), random_);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  void expect_definition(const Routing& routing, int64_t top_k) {
    SCOPED_TRACE(name(routing));
    const std::vector<float> logits = spaced_logits();
    std::vector<float> bias, scales;
    for (int64_t e = 0; e < kExperts; ++e) {
      if (routing.correction_bias) bias.push_back(static_cast<float>(e * 5 % 7) / 64);
      if (routing.expert_scales) scales.push_back(static_cast<float>(e + 1) / 8);
    }
    int32_t* const ids = upload(std::vector<int32_t>(kTokens * top_k, -7));
    float* const weights = upload(std::vector<float>(kTokens * top_k, -7));
    const RouterVectors vectors{bias.empty() ? nullptr : upload(bias),
                                scales.empty() ? nullptr : upload(scales)};
    expect_done(
        route(*device_, matrix(logits, kTokens, kExperts), routing, top_k, vectors, ids, weights));
    const std::vector<int32_t> got_ids = download(ids, kTokens * top_k);
    const std::vector<float> got = download(weights, kTokens * top_k);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto row = logits.begin() + t * kExperts;
      const Choices want = by_definition({row, row + kExperts}, routing, bias, scales, top_k);
      for (int64_t j = 0; j < top_k; ++j) {
        ASSERT_EQ(got_ids[t * top_k + j], want.ids[j]) << "token " << t << ", choice " << j;
        ASSERT_NEAR(got[t * top_k + j], want.weights[j],
                    f32_bound(want.weights[j], want.weights[j] * (kExperts + 60) * 0x1p-24));
      }
    }
  }

  std::string refused(const Matrix& logits, const Routing& routing, const RouterVectors& vectors,
                      int32_t* ids, float* weights) {
    const Status status = route(*device_, logits, routing, 2, vectors, ids, weights);
    return status ? "accepted" : status.error().to_string();
  }
};

TEST_P(PublicRoute, MatchesDefinitionForEveryScoreFunction) {
  expect_definition({}, 4);
  expect_definition({.renormalize = true, .scaling_factor = 2.5f}, 4);
  expect_definition({.num_groups = 4, .top_groups = 2}, 4);
  expect_definition({.score = Score::kSigmoid, .renormalize = true}, 3);
  expect_definition({.score = Score::kSigmoid,
                     .renormalize = true,
                     .num_groups = 4,
                     .top_groups = 2,
                     .scaling_factor = 2.5f,
                     .correction_bias = true},
                    4);
  expect_definition({.score = Score::kTopkThenSoftmax}, 4);
  expect_definition({.score = Score::kSparseMixer, .jitter = 0.2f}, 2);
  expect_definition({.renormalize = true, .expert_scales = true}, 4);
}

TEST_P(PublicRoute, RefusesArgumentsByName) {
  const Matrix logits = matrix(std::vector<float>(12), 1, 12);
  float* const weights = upload(std::vector<float>(13));
  int32_t* const ids = upload(std::vector<int32_t>(13));
  EXPECT_EQ(refused(logits, {}, {}, ids, weights), "accepted");
  EXPECT_EQ(refused({nullptr, dtype(), 0, 12, 12}, {}, {}, nullptr, nullptr), "accepted");
  Matrix wrong = logits;
  wrong.dtype = DType::kI32;
  EXPECT_THAT(refused(wrong, {}, {}, ids, weights), HasSubstr("it is i32 [1, 12]"));
  wrong = logits;
  wrong.stride = 11;
  EXPECT_THAT(refused(wrong, {}, {}, ids, weights), HasSubstr("stride 11"));
  wrong = logits;
  wrong.rows = -1;
  EXPECT_THAT(refused(wrong, {}, {}, ids, weights), HasSubstr("[-1, 12]"));
  wrong.rows = 1;
  wrong.data = nullptr;
  EXPECT_THAT(refused(wrong, {}, {}, ids, weights), HasSubstr("logits: needs device memory"));
  EXPECT_THAT(refused(logits, {}, {}, nullptr, weights), HasSubstr("topk_ids: needs"));
  auto* const odd = reinterpret_cast<float*>(reinterpret_cast<std::byte*>(weights) + 2);
  EXPECT_THAT(refused(logits, {}, {}, ids, odd), HasSubstr("topk_weights: needs an address"));
  EXPECT_THAT(refused(logits, {.expert_scales = true}, {}, ids, weights),
              HasSubstr("expert_scales: needs a scale for each expert; it is null"));
  EXPECT_THAT(refused(logits, {}, {.expert_scales = weights}, ids, weights),
              HasSubstr("no scales of experts"));
  EXPECT_THAT(refused(logits, {}, {.correction_bias = weights}, ids, weights),
              HasSubstr("one is given"));
  EXPECT_THAT(refused(logits, {.score = Score::kUnknown}, {}, ids, weights),
              HasSubstr("a known score function"));
}

MORACLE_ON_EVERY_DEVICE(PublicRoute);

}  // namespace
}  // namespace moracle::public_route_test
