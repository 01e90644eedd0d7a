// Tests the random layers and routings that are timed.
#include "timing/random_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <vector>

#include "bench/bench.h"
#include "conformance/conformance.h"
#include "support/must.h"
#include "timing/random_routing.h"

namespace moracle::timing::random_layer_test {
namespace {

LayerSpec layer_spec(std::string_view shape, std::string_view scheme) {
  return bench::layer_of(testing::must(bench::find_shape(shape)),
                         testing::must(parse_scheme(scheme)));
}

TEST(RandomLayer, IsRepeatableAndDifferentPerExpert) {
  const LayerSpec spec = layer_spec("4x64x32x2", "int4-w4a16-g32");
  const DescribedWeights layer = random_layer(spec, 3), other = random_layer(spec, 4);
  auto codes = [](const DescribedWeights& weights, int64_t e) {
    const CanonicalMatrix expert = testing::must(weights.w13.expert(e));
    return std::vector<std::byte>(expert.codes.begin(), expert.codes.end());
  };
  EXPECT_EQ(codes(layer, 1), codes(layer, 1));
  EXPECT_NE(codes(layer, 1), codes(layer, 2));
  EXPECT_NE(codes(layer, 1), codes(other, 1));
}

// Scales, zero points and biases are as many as in the canonical form.
TEST(RandomLayer, MatchesFormatOfScheme) {
  bench::LayerShape shape = testing::must(bench::find_shape("2x160x96x1"));
  shape.bias = true;
  for (const Scheme& wanted : conformance::schemes()) {
    const LayerSpec spec = bench::layer_of(shape, wanted);
    const DescribedWeights layer = random_layer(spec, 1);
    const Result<CanonicalMatrix> expert = layer.w2.expert(1);
    ASSERT_TRUE(expert) << name(wanted);
    const size_t scales =
        wanted.weight.quantized() ? expert->scale_rows() * expert->scale_cols() : 0;
    EXPECT_EQ(expert->scales.size(), scales) << name(wanted);
    EXPECT_EQ(expert->zero_points.size(), wanted.weight.symmetric ? 0 : scales) << name(wanted);
    EXPECT_EQ(expert->bias.size(), 160u) << name(wanted);
    EXPECT_EQ(layer.w13.input_scales().empty(), !wanted.activation || wanted.activation->dynamic);
  }
}

TEST(RandomRoutings, GiveEachTokenDistinctExperts) {
  const LayerSpec spec = layer_spec("16x64x32x4", "bf16");
  for (const Routed& routed : random_routings(spec, 40, 1)) {
    ASSERT_EQ(routed.ids.size(), 160u);
    ASSERT_EQ(routed.weights.size(), 160u);
    for (size_t t = 0; t < 40; ++t) {
      const std::set<int32_t> experts(routed.ids.begin() + t * 4, routed.ids.begin() + t * 4 + 4);
      EXPECT_EQ(experts.size(), 4u);
      EXPECT_GE(*experts.begin(), 0);
      EXPECT_LT(*experts.rbegin(), 16);
    }
    const std::set<int32_t> all(routed.ids.begin(), routed.ids.end());
    EXPECT_EQ(routed.distinct, static_cast<int64_t>(all.size()));
  }
}

TEST(RandomRoutings, SingleTokenUsesEveryExpertBeforeRepeating) {
  const LayerSpec spec = layer_spec("16x64x32x4", "bf16");
  std::set<int32_t> all;
  const std::vector<Routed> routings = random_routings(spec, 1, 1);
  EXPECT_EQ(routings.size(), 4u);
  for (const Routed& routed : routings) all.insert(routed.ids.begin(), routed.ids.end());
  EXPECT_EQ(all.size(), 16u);
}

TEST(RandomRoutings, SkewedRoutingsFollowZipfLaw) {
  const LayerSpec spec = layer_spec("8x64x32x1", "bf16");
  const std::vector<Routed> routings = random_routings(spec, 4000, 1, 1.0);
  ASSERT_GE(routings.size(), 2u);
  int32_t most_popular = -1;
  for (const Routed& routed : routings) {
    std::vector<int64_t> counts(8);
    for (const int32_t id : routed.ids) ++counts[id];
    const auto most = std::max_element(counts.begin(), counts.end());
    const auto popular = static_cast<int32_t>(most - counts.begin());
    if (most_popular >= 0) {
      EXPECT_EQ(popular, most_popular);
    }
    most_popular = popular;
    std::sort(counts.rbegin(), counts.rend());
    double total = 0;
    for (int r = 1; r <= 8; ++r) total += 1.0 / r;
    // 4,000 draws: a share's standard deviation is at most 0.8 %.
    for (int r = 1; r <= 8; ++r)
      EXPECT_NEAR(static_cast<double>(counts[r - 1]) / 4000, 1.0 / r / total, 0.03) << r;
  }
}

TEST(RandomRoutings, SkewedRoutingsGiveEachTokenDistinctExperts) {
  const LayerSpec spec = layer_spec("16x64x32x4", "bf16");
  for (const Routed& routed : random_routings(spec, 40, 1, 2.0)) {
    ASSERT_EQ(routed.ids.size(), 160u);
    for (size_t t = 0; t < 40; ++t) {
      const std::set<int32_t> experts(routed.ids.begin() + t * 4, routed.ids.begin() + t * 4 + 4);
      EXPECT_EQ(experts.size(), 4u);
    }
  }
}

}  // namespace
}  // namespace moracle::timing::random_layer_test
