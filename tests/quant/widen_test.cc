// Tests that widened integer weights keep their values, and which schemes have a common one.
#include "quant/widen.h"

#include <gtest/gtest.h>

#include <random>

#include "support/random_matrix.h"

namespace moracle::widen_test {
namespace {

using testing::values;

QuantKey key_of(DType dtype, int64_t group, bool symmetric = true) {
  return {.dtype = dtype, .group = per_group(group), .symmetric = symmetric};
}

QuantKey with_minimums(DType dtype, int64_t group, bool symmetric = true) {
  QuantKey key = key_of(dtype, group, symmetric);
  key.minimums = true;
  return key;
}

CanonicalMatrix random_matrix(const QuantKey& key, int64_t n, int64_t k, bool act_order) {
  std::mt19937 random(3);
  CanonicalMatrix m = testing::random_matrix(key, n, k, random, 6);
  if (key.minimums) m.minimums.resize(m.scales.size());
  for (float& minimum : m.minimums) minimum = static_cast<float>(random() % 61) - 30.5f;
  if (!act_order) return m;
  for (int64_t c = 0; c < k; ++c)
    m.group_index.push_back(static_cast<int32_t>(random() % m.scale_cols()));
  return m;
}

TEST(Widen, KeepsEveryValue) {
  constexpr int64_t kAll = GroupShape::kAll;
  const QuantKey keys[] = {key_of(DType::kI4, 8),           key_of(DType::kI4, 12, false),
                           key_of(DType::kI4, kAll),        key_of(DType::kI4, kAll, false),
                           key_of(DType::kI8, 16),          key_of(DType::kI8, 64, false),
                           key_of(DType::kI8, kAll, false), key_of(DType::kI4, 128),
                           with_minimums(DType::kI4, 32),   with_minimums(DType::kI8, 16, false)};
  for (const QuantKey& from : keys) {
    for (const QuantKey& other : keys) {
      const Scheme common = common_scheme({.weight = from}, {.weight = other}).value();
      for (const bool act_order : {false, true}) {
        CanonicalMatrix m = random_matrix(from, 5, 43, act_order);
        const std::vector<double> before = values(m);
        widen(m, common.weight);
        EXPECT_EQ(m.key, common.weight);
        EXPECT_EQ(m.scales.size(), static_cast<size_t>(m.n * m.scale_cols()));
        EXPECT_EQ(m.zero_points.empty(), common.weight.symmetric);
        EXPECT_EQ(m.minimums.empty(), !common.weight.minimums);
        EXPECT_EQ(values(m), before) << name(Scheme{.weight = from}) << " as " << name(common);
      }
    }
  }
}

TEST(CommonScheme, TakesWiderCodesSmallerGroupsZeroPointsAndMinimums) {
  const auto common = [](const char* a, const char* b) {
    const auto scheme = common_scheme(*parse_scheme(a), *parse_scheme(b));
    return scheme ? name(*scheme) : "none";
  };
  EXPECT_EQ(common("int4-w4a16-g128", "int8-w8a16-g128"), "int8-w8a16-g128");
  EXPECT_EQ(common("int4-w4a16-g128", "int4-w4a16-g32-asym"), "int4-w4a16-g32-asym");
  EXPECT_EQ(common("int8-w8a16-channel", "int4-w4a16-g128"), "int8-w8a16-g128");
  EXPECT_EQ(common("int4-w4a16-g48", "int4-w4a16-g64"), "int4-w4a16-g16");
  EXPECT_EQ(common("int4-w4a16-g32-asym-min", "int8-w8a16-g16"), "int8-w8a16-g16-asym-min");
  EXPECT_EQ(common("int8-w8a16-g32", "int4-w4a16-g32-min"), "int8-w8a16-g32-min");
  EXPECT_EQ(common("fp8-w8a8-channel", "fp8-w8a8-channel"), "fp8-w8a8-channel");
  // Activations, or codes without integers, have no exact common form.
  EXPECT_EQ(common("int4-w4a8-g128", "int4-w4a16-g128"), "none");
  EXPECT_EQ(common("int8-w8a16-g128", "fp8-w8a16-channel"), "none");
  EXPECT_EQ(common("bf16", "int4-w4a16-g128"), "none");
  EXPECT_EQ(common("mxfp4-w4a16", "nvfp4-w4a16"), "none");
}

}  // namespace
}  // namespace moracle::widen_test
