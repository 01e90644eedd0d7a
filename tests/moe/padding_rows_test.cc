// Tests padding tokens and slots of other ranks, on every backend in every scheme. They add exactly
// zero, for any content.
#include <gtest/gtest.h>

#include <bit>
#include <climits>
#include <cmath>
#include <string>
#include <vector>

#include "base/text.h"
#include "moe/layer_on_rows.h"

namespace moracle::padding_rows_test {
namespace {

using conformance::random_weights;
using testing::cpu_rows;
using testing::odd_layer;
using testing::output_on;
using testing::TokenBatch;

constexpr int64_t kTokens = 6, kTopK = 2;

bool is_padding(int64_t token) {
  return token == 1 || token == 4;
}

/// Invalid expert ids: negative, one past the end, and values at which an index would wrap around.
int32_t no_expert(const LayerSpec& spec, int64_t slot) {
  const int32_t ids[] = {-1, static_cast<int32_t>(spec.num_experts), INT_MAX, INT_MIN};
  return ids[slot % 4];
}

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

template <class Check>
void for_each_row_and_scheme(Check check) {
  for (const Scheme& scheme : conformance::schemes()) {
    LayerSpec spec = odd_layer(scheme, 5, kTopK);
    spec.bias = true;  // an index counted from the end would find the last expert's bias
    for (const std::string& row : cpu_rows(spec)) {
      SCOPED_TRACE(str(row, ", ", name(scheme)));
      check(row, spec);
    }
  }
}

// No value of a padding token is read, not even a NaN, and no bit of it reaches another token.
TEST(PaddingRows, GiveZeroAndChangeNoOtherToken) {
  for_each_row_and_scheme([](const std::string& row, const LayerSpec& spec) {
    TokenBatch with = testing::random_batch(spec, kTokens), without;
    for (int64_t t = 0; t < kTokens; ++t) {
      float* const hidden = &with.hidden[t * spec.hidden_size];
      if (is_padding(t)) {
        std::fill_n(hidden, spec.hidden_size, t == 1 ? NAN : INFINITY);
        for (int64_t slot = t * kTopK; slot < (t + 1) * kTopK; ++slot) {
          with.ids[slot] = no_expert(spec, slot);
          with.weights[slot] = NAN;
        }
        continue;
      }
      ++without.tokens;
      without.hidden.insert(without.hidden.end(), hidden, hidden + spec.hidden_size);
      for (int64_t slot = t * kTopK; slot < (t + 1) * kTopK; ++slot) {
        without.ids.push_back(with.ids[slot]);
        without.weights.push_back(with.weights[slot]);
      }
    }
    const auto got = bits_of(output_on(row, random_weights(spec, 1), with));
    const auto others = bits_of(output_on(row, random_weights(spec, 1), without));
    auto other = others.begin();
    for (int64_t i = 0; i < kTokens * spec.hidden_size; ++i) {
      ASSERT_EQ(got[i], is_padding(i / spec.hidden_size) ? 0u : *other++) << "element " << i;
    }
  });
}

// A slot without an expert acts like a slot of weight zero, next to a slot with an
// expert.
TEST(PaddingRows, KeepOtherSlotsOfToken) {
  for_each_row_and_scheme([](const std::string& row, const LayerSpec& spec) {
    TokenBatch holes = testing::random_batch(spec, kTokens), alone = holes;
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t hole = t * kTopK + t % kTopK;
      holes.ids[hole] = no_expert(spec, t);
      holes.weights[hole] = NAN;
      alone.ids[hole] = -1;
      alone.weights[hole] = 0;
    }
    const std::vector<float> got = output_on(row, random_weights(spec, 1), holes);
    EXPECT_EQ(bits_of(got), bits_of(output_on(row, random_weights(spec, 1), alone)));
    for (float value : got) ASSERT_TRUE(std::isfinite(value));
    const auto want = testing::expected_of(random_weights(spec, 1), alone, row);
    EXPECT_LE(testing::share_of_bound(want, got), 1);
  });
}

}  // namespace
}  // namespace moracle::padding_rows_test
