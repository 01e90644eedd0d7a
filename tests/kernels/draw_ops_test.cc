// Weights of draws: bits that no instruction set changes.
#include "kernels/cpu/sampling/draw_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/isa_here.h"
#include "support/floats.h"

namespace moracle::cpu::draw_ops_test {
namespace {

constexpr int64_t kCounts[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 100, 255, 256};
constexpr float kLog2OfE = 1.44269504f;

struct Row {
  std::vector<float> logits;
  float most = -std::numeric_limits<float>::infinity();
};
Row row_of(int64_t count, float size, std::mt19937& random) {
  Row row{testing::normal_floats(random, count, size)};
  for (float& logit : row.logits) {
    if (random() % 16 == 0) logit = -std::numeric_limits<float>::infinity();
  }
  if (count > 0) row.logits[static_cast<size_t>(count) / 2] = 3;
  for (const float logit : row.logits) row.most = std::max(row.most, logit);
  return row;
}

std::vector<const DrawOps*> tables_here() {
  std::vector<const DrawOps*> tables = {&kPortableDrawOps};
#if defined(__x86_64__)
  if (has(Isa::kAvx2)) tables.push_back(&kAvx2DrawOps);
  if (has(Isa::kAvx512 | Isa::kAvx2)) tables.push_back(&kAvx512DrawOps);
#endif
  return tables;
}

uint64_t units(const std::vector<float>& weights) {
  uint64_t sum = 0;
  for (const float weight : weights)
    sum += static_cast<uint64_t>(std::nearbyint(std::ldexp(static_cast<double>(weight), 42)));
  return sum;
}

TEST(DrawOps, WeightsArePowersAndTheirSumIsExact) {
  for (const DrawOps* ops : tables_here()) {
    std::mt19937 random(3);
    for (const int64_t count : kCounts) {
      const Row row = row_of(count, 6, random);
      std::vector<float> weights(row.logits.size());
      const uint64_t sum =
          ops->weights(row.logits.data(), count, row.most, kLog2OfE, weights.data());
      EXPECT_EQ(sum, units(weights)) << ops->isa;
      for (size_t i = 0; i < weights.size(); ++i) {
        const float y = (row.logits[i] - row.most) * kLog2OfE;
        const double power = y < -42 ? 0 : std::exp2(static_cast<double>(y));
        ASSERT_NEAR(weights[i], power, 0x1p-23 * power) << ops->isa << ", 2^" << y;
      }
    }
  }
}

TEST(DrawOps, TablesGiveSameBits) {
  for (const DrawOps* ops : tables_here()) {
    std::mt19937 random(5);
    for (const int64_t count : kCounts) {
      for (const float scale : {0.3f, kLog2OfE, 1e30f}) {
        const Row row = row_of(count, 10, random);
        std::vector<float> weights(row.logits.size()), expected(row.logits.size());
        const uint64_t sum =
            ops->weights(row.logits.data(), count, row.most, scale, weights.data());
        EXPECT_EQ(sum, kPortableDrawOps.weights(row.logits.data(), count, row.most, scale,
                                                expected.data()));
        ASSERT_EQ(weights, expected) << ops->isa;
        const uint64_t kept = ops->keep(weights.data(), count, 1e-6f, 0.5f);
        EXPECT_EQ(kept, units(weights));
        for (float& weight : expected) weight = weight >= 1e-6f && weight < 0.5f ? weight : 0;
        ASSERT_EQ(weights, expected) << ops->isa;
      }
    }
  }
}

TEST(DrawOps, WeightsAreFoundAndAddedByTheirBits) {
  constexpr int kShift = 17;
  const auto first = std::bit_cast<uint32_t>(0x1p-20f);
  for (const DrawOps* ops : tables_here()) {
    std::mt19937 random(9);
    for (const int64_t count : kCounts) {
      const Row row = row_of(count, 6, random);
      std::vector<float> weights(row.logits.size());
      ops->weights(row.logits.data(), count, row.most, kLog2OfE, weights.data());
      std::vector<uint64_t> sums(((std::bit_cast<uint32_t>(1.0f) - first) >> kShift) + 1);
      std::vector<uint64_t> expected = sums;
      ops->add_by_bits(weights.data(), count, first, kShift, sums.data());
      std::vector<uint32_t> found(weights.size()), expected_found;
      found.resize(
          static_cast<size_t>(ops->find(weights.data(), count, 0x1p-9f, 0.5f, found.data())));
      for (const float weight : weights) {
        const auto bits = std::bit_cast<uint32_t>(weight);
        expected[bits < first ? 0 : (bits - first) >> kShift] += units({weight});
        if (weight >= 0x1p-9f && weight < 0.5f) expected_found.push_back(bits);
      }
      EXPECT_EQ(sums, expected) << ops->isa;
      EXPECT_EQ(found, expected_found) << ops->isa;
    }
  }
}

}  // namespace
}  // namespace moracle::cpu::draw_ops_test
