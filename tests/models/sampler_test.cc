// Compares draws with the definition: sort, cut, then walk.
#include "models/generation/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "support/floats.h"

namespace moracle::sampler_test {
namespace {

struct Definition {
  const SamplingOptions& options;
  std::span<const float> logits;
  double share, xtc;         // the uniform numbers of a draw
  std::vector<int32_t> ids;  // the candidates, the likeliest first

  /// `off` moves each limit and the draw by this share of the sum.
  int32_t draw(double off) const {
    if (options.temperature == 0) return ids[0];
    const bool all = options.top_k == 0 || options.top_k >= static_cast<int64_t>(logits.size());
    std::vector<double> weights;
    for (int32_t id : ids)
      weights.push_back(
          std::exp((static_cast<double>(logits[id]) - logits[ids[0]]) / options.temperature));
    const auto total = [&] { return std::accumulate(weights.begin(), weights.end(), 0.0); };
    if (options.top_p < 1) {
      size_t kept = 0;
      for (double reached = 0, wanted = (options.top_p + off) * total();
           kept < ids.size() && (kept == 0 || reached < wanted);)
        reached += weights[kept++];
      weights.resize(kept);
    }
    while (weights.size() > 1 && weights.back() < options.min_p * (1 + off)) weights.pop_back();
    if (options.xtc_probability > xtc) {
      const double least = (options.xtc_threshold + off) * total();
      size_t reached = 0;
      while (reached < weights.size() && weights[reached] >= least) ++reached;
      for (size_t i = 0; i + 1 < reached; ++i) weights[i] = 0;
    }
    std::vector<std::pair<int32_t, double>> kept;
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i] > 0) kept.push_back({ids[i], weights[i]});
    // All logits are walked by id, the largest ones in their order.
    if (all) std::sort(kept.begin(), kept.end());
    double at = (share + off) * total();
    for (const auto& [id, weight] : kept) {
      at -= weight;
      if (at < 0) return id;
    }
    return kept.back().first;
  }
};

// Sums of floats differ in the last places from those of the definition.
std::set<int32_t> by_definition(const SamplingOptions& options, std::span<const float> logits,
                                std::mt19937_64& engine) {
  const auto uniform = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
  const double share = options.temperature > 0 ? uniform() : 0;
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) ids.resize(std::min<size_t>(ids.size(), options.top_k));
  const Definition definition{options, logits, share, options.xtc_probability > 0 ? uniform() : 1,
                              std::move(ids)};
  constexpr double kOff = 2e-6;
  return {definition.draw(-kOff), definition.draw(0), definition.draw(kOff)};
}

std::vector<float> logits(int64_t count, float size, int seed) {
  std::mt19937 random(seed);
  return testing::normal_floats(random, count, size);
}

struct Case {
  const char* name;
  SamplingOptions options;
};

// Every third draw has many equal logits: the lower id comes first.
void expect_draws_by_definition(const SamplingOptions& options, int64_t vocabulary, float size) {
  SCOPED_TRACE(::testing::Message() << vocabulary << " ids, logits of size " << size);
  Sampler sampler(options);
  std::mt19937_64 engine(options.seed);
  for (int draw = 0; draw < 12; ++draw) {
    std::vector<float> values = logits(vocabulary, size, draw);
    if (draw % 3 == 0)
      for (float& value : values) value = std::round(value);
    const int32_t id = *sampler.draw(values);
    ASSERT_TRUE(by_definition(options, values, engine).contains(id)) << "draw " << draw;
  }
}

TEST(Sampler, MatchesDefinition) {
  const Case cases[] = {
      {"greedy", {.temperature = 0}},
      {"plain", {.temperature = 1}},
      {"cold", {.temperature = 0.2f}},
      {"top-k 1", {.temperature = 1, .top_k = 1}},
      {"top-k 20", {.temperature = 1, .top_k = 20}},
      {"hot, top-k 700", {.temperature = 1.5f, .top_k = 700}},
      {"cool, top-k 20, top-p 0.9", {.temperature = 0.8f, .top_k = 20, .top_p = 0.9f}},
      {"top-p 0.5", {.temperature = 1, .top_p = 0.5f}},
      {"top-p 0.999", {.temperature = 1, .top_p = 0.999f}},
      {"min-p 0.05", {.temperature = 1, .min_p = 0.05f}},
      {"top-p 0.9, min-p 0.01", {.temperature = 1, .top_p = 0.9f, .min_p = 0.01f}},
      {"top-k of all, min-p 0.3", {.temperature = 1, .top_k = 9000, .min_p = 0.3f}},
      {"XTC", {.temperature = 1, .xtc_probability = 0.5f, .xtc_threshold = 0.05f}},
      {"top-k 20, XTC",
       {.temperature = 1, .top_k = 20, .xtc_probability = 0.5f, .xtc_threshold = 0.1f}},
      {"top-p 0.9, XTC from 0",
       {.temperature = 1, .top_p = 0.9f, .xtc_probability = 1, .xtc_threshold = 0}}};
  for (auto [name, options] : cases) {
    SCOPED_TRACE(name);
    options.seed = 5;
    for (int64_t vocabulary : {1, 2, 255, 256, 257, 5000})
      for (float size : {0.1f, 3.0f, 30.0f}) expect_draws_by_definition(options, vocabulary, size);
  }
}

TEST(Sampler, NeverDrawsIdsWithLogitMinusInfinity) {
  std::vector<float> values(1000, -std::numeric_limits<float>::infinity());
  values[777] = 1, values[3] = 0;
  for (SamplingOptions options : {SamplingOptions{.temperature = 1},
                                  {.temperature = 1, .top_k = 5},
                                  {.temperature = 1, .top_p = 0.99f},
                                  {.temperature = 0}}) {
    Sampler sampler(options);
    for (int draw = 0; draw < 50; ++draw) {
      const int32_t id = *sampler.draw(values);
      ASSERT_TRUE(id == 777 || id == 3) << id;
    }
  }
}

// As if their logits were minus infinity, whether few or all logits decide.
TEST(Sampler, NeverDrawsExcludedIds) {
  const std::vector<int32_t> excluded = {0, 5, 6, 7, 998, 999, 5000};
  for (SamplingOptions options : {SamplingOptions{.temperature = 0},
                                  {.temperature = 1},
                                  {.temperature = 1, .top_k = 3},
                                  {.temperature = 1, .top_p = 0.9f}}) {
    Sampler masked(options);
    options.excluded_ids = excluded;
    ASSERT_TRUE(check(options));
    Sampler sampler(options);
    for (int draw = 0; draw < 30; ++draw) {
      std::vector<float> values = logits(1000, 1, draw);
      for (const int32_t id : {0, 6, 999}) values[id] = 9;
      const auto got = sampler.draw(values);
      for (const int32_t id : {0, 5, 6, 7, 998, 999})
        values[id] = -std::numeric_limits<float>::infinity();
      ASSERT_EQ(*got, *masked.draw(values));
    }
    std::vector<float> values = logits(1000, 1, 1);
    values[6] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(sampler.draw(values)) << "an excluded id's logit is no number";
    EXPECT_TRUE(sampler.has_excluded(std::vector<int32_t>{1, 999}));
    EXPECT_FALSE(sampler.has_excluded(std::vector<int32_t>{1, 997}));
  }
  EXPECT_FALSE(check(SamplingOptions{.excluded_ids = {3, 3}}));
  EXPECT_FALSE(check(SamplingOptions{.excluded_ids = {-1}}));
}

TEST(Sampler, GreedyPicksFirstOfEqualMaxima) {
  std::vector<float> values = logits(3000, 1, 1);
  values[2900] = values[700] = values[701] = 50;
  EXPECT_EQ(Sampler({}).draw(values), 700);
}

// All logits are invalid, or one of them: the first, the middle or the last.
void expect_no_draw(Sampler& sampler, int64_t count) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float all : {kNan, -kInf, kInf})
    EXPECT_FALSE(sampler.draw(std::vector<float>(count, all))) << count << " of " << all;
  for (const int64_t at : {int64_t{0}, count / 2, count - 1}) {
    for (const float one : {kNan, -kNan, kInf}) {
      std::vector<float> values = logits(count, 2, 1);
      values[at] = one;
      EXPECT_FALSE(sampler.draw(values)) << one << " at " << at << " of " << count;
    }
  }
}

TEST(Sampler, DrawsNothingFromInvalidLogits) {
  const Case cases[] = {{"greedy", {.temperature = 0}},
                        {"plain", {.temperature = 1}},
                        {"top-k 5", {.temperature = 1, .top_k = 5}},
                        {"top-k 5, top-p 0.5", {.temperature = 1, .top_k = 5, .top_p = 0.5f}},
                        {"top-p 0.5", {.temperature = 1, .top_p = 0.5f}},
                        {"top-p 1e-6", {.temperature = 1, .top_p = 1e-6f}},
                        {"min-p 0.1", {.temperature = 1, .min_p = 0.1f}},
                        {"top-k of all, min-p 1", {.temperature = 1, .top_k = 5000, .min_p = 1}}};
  for (const auto& [name, options] : cases) {
    SCOPED_TRACE(name);
    Sampler sampler(options);
    for (const int64_t count : {1, 40, 1000}) expect_no_draw(sampler, count);
  }
}

// If few logits decide the draw, those logits are enough.
TEST(Sampler, TopKInputGivesSameDraws) {
  cpu::TopK largest;
  for (SamplingOptions options : {SamplingOptions{.temperature = 0},
                                  {.temperature = 1, .top_k = 1},
                                  {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f},
                                  {.temperature = 1, .top_k = 64, .min_p = 0.1f}}) {
    Sampler all(options), few(options);
    for (int draw = 0; draw < 40; ++draw) {
      const std::vector<float> values = logits(3000, 2, draw);
      std::vector<int32_t> ids(few.candidates(3000));
      largest.find(values, ids);
      std::vector<float> found;
      for (int32_t id : ids) found.push_back(values[id]);
      ASSERT_EQ(*few.draw(ids, found), *all.draw(values));
    }
  }
  EXPECT_EQ(Sampler({.temperature = 1}).candidates(3000), 0);
  EXPECT_EQ(Sampler({.temperature = 1, .top_k = 3000}).candidates(3000), 0);
}

// Equal weights have no order but that of their ids: top-p keeps the first ones.
TEST(Sampler, TopPKeepsFirstOfEqualWeights) {
  const std::vector<float> values(1000, 0.5f);
  Sampler sampler({.temperature = 1, .top_p = 0.3f, .seed = 1});
  std::set<int32_t> drawn;
  for (int draw = 0; draw < 3000; ++draw) drawn.insert(*sampler.draw(values));
  EXPECT_LT(*drawn.rbegin(), 301);  // 0.3f is a little above 0.3
  EXPECT_GT(drawn.size(), 290u);
}

// Few weights are sorted, many are counted by their bits. Weights of 0 change nothing.
TEST(Sampler, TopPKeepsTheSameOfFewAndOfMany) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (const float top_p : {1e-6f, 0.3f, 0.8f, 0.95f, 0.999999f}) {
    for (const int64_t count : {1, 2, 20, 64}) {
      const SamplingOptions options{.temperature = 0.7f, .top_p = top_p, .seed = 3};
      Sampler few(options), many(options);
      for (int draw = 0; draw < 100; ++draw) {
        std::vector<float> values = logits(count, 3, draw);
        for (float& value : values) value = std::round(2 * value) / 2;  // some are equal
        const int32_t drawn = *few.draw(values);
        values.resize(1000, kNever);
        ASSERT_EQ(drawn, *many.draw(values)) << top_p << ", " << count;
      }
    }
  }
}

TEST(Sampler, DrawsLargestAtTinyTemperature) {
  std::vector<float> values = logits(1000, 2, 4);
  values[321] = 1e30f;
  for (const float temperature : {1e-45f, 1e-30f, 1e-6f}) {
    EXPECT_EQ(Sampler({.temperature = temperature}).draw(values), 321);
    EXPECT_EQ(Sampler({.temperature = temperature, .top_p = 0.5f}).draw(values), 321);
  }
}

double chi_square(const SamplingOptions& options, std::span<const float> values) {
  constexpr int kDraws = 40000;
  Sampler sampler(options);
  std::vector<double> counts(values.size());
  for (int draw = 0; draw < kDraws; ++draw) ++counts[*sampler.draw(values)];
  double sum = 0, square = 0;
  for (const float value : values) sum += std::exp(value / options.temperature);
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = kDraws * std::exp(values[i] / options.temperature) / sum;
    square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return square;
}

// 299 degrees of freedom: the statistic is above 404 once in 20,000 times.
TEST(Sampler, DrawsPassChiSquareTest) {
  const std::vector<float> values = logits(300, 1, 9);
  for (const float temperature : {0.7f, 1.0f, 3.0f})
    EXPECT_LT(chi_square({.temperature = temperature, .seed = 11}, values), 404);
}

// The frequencies of many draws match the softmax.
TEST(Sampler, DrawFrequenciesMatchProbabilities) {
  const std::vector<float> values = {0, 1, 2, -1};
  Sampler sampler({.temperature = 1, .seed = 3});
  std::vector<double> shares(4);
  for (int draw = 0; draw < 20000; ++draw) shares[*sampler.draw(values)] += 1.0 / 20000;
  double sum = 0;
  for (float value : values) sum += std::exp(value);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(shares[i], std::exp(values[i]) / sum, 0.012);
}

}  // namespace
}  // namespace moracle::sampler_test
