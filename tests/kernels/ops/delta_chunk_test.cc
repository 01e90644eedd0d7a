// Compares the gated delta rule over chunks of every instruction set with the rule token by token
// in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/text.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/isa_here.h"
#include "support/floats.h"

namespace moracle::cpu::delta_chunk_test {
namespace {

std::vector<const VectorOps*> tables() {
  std::vector<const VectorOps*> all = {&kPortableVectorOps};
#if defined(__x86_64__)
  if (has(Isa::kAvx2)) all.push_back(&kAvx2VectorOps);
  if (has(Isa::kAvx512 | Isa::kAvx2)) all.push_back(&kAvx512VectorOps);
#endif
  return all;
}

/// One chunk of one head. Rows of `v` and `out` have other columns behind them.
struct Chunk {
  int64_t tokens, key_dim, value_dim, stride = value_dim + 5;
  std::vector<float> q, k, v, decay, strength, state;  // state: [key_dim, value_dim]
  std::vector<float> out = std::vector<float>(tokens * stride, 77);

  Chunk(std::mt19937& random, int64_t num_tokens, int64_t key_columns, int64_t value_columns)
      : tokens(num_tokens), key_dim(key_columns), value_dim(value_columns) {
    const auto normal = [&random](int64_t count) { return testing::normal_floats(random, count); };
    q = normal(kDeltaChunk * key_dim), k = normal(kDeltaChunk * key_dim);
    v = normal(tokens * stride), state = normal(key_dim * value_dim);
    // Neighbouring keys alike, so that the changes of tokens depend on each other.
    for (size_t i = key_dim; i < k.size(); ++i) k[i] = 0.7f * k[i - key_dim] + 0.3f * k[i];
    for (int64_t i = 0; i < kDeltaChunk; ++i) {
      double squares = 0;
      for (int64_t d = 0; d < key_dim; ++d) squares += std::pow(double{k[i * key_dim + d]}, 2);
      for (int64_t d = 0; d < key_dim; ++d) k[i * key_dim + d] /= std::sqrt(squares);
    }
    for (const float x : normal(kDeltaChunk)) decay.push_back(std::exp(-0.05f * std::fabs(x)));
    for (const float x : normal(kDeltaChunk)) strength.push_back(1 / (1 + std::exp(-x)));
  }

  void run(const VectorOps& ops) {
    std::vector<float> columns(key_dim * kDeltaChunk), strips(state.size());
    const auto strip = [this](int64_t d, int64_t c) {
      return (c / kDeltaStrip * key_dim + d) * kDeltaStrip + c % kDeltaStrip;
    };
    for (int64_t d = 0; d < key_dim; ++d) {
      for (int64_t i = 0; i < kDeltaChunk; ++i) columns[d * kDeltaChunk + i] = k[i * key_dim + d];
      for (int64_t c = 0; c < value_dim; ++c) strips[strip(d, c)] = state[d * value_dim + c];
    }
    std::vector<float> q_by_k(kDeltaChunk * kDeltaChunk, NAN), k_by_k = q_by_k;
    ops.delta_products(q.data(), columns.data(), key_dim, tokens, q_by_k.data());
    ops.delta_products(k.data(), columns.data(), key_dim, tokens, k_by_k.data());
    ops.delta_chunk({q.data(), k.data(), q_by_k.data(), k_by_k.data(), decay.data(),
                     strength.data(), v.data(), out.data(), strips.data(), stride, stride, tokens,
                     key_dim, value_dim});
    for (int64_t d = 0; d < key_dim; ++d) {
      for (int64_t c = 0; c < value_dim; ++c) state[d * value_dim + c] = strips[strip(d, c)];
    }
  }

  /// The rule of one column of values: outputs of the tokens, then the state.
  std::vector<double> column(int64_t c) const {
    std::vector<double> s, results;
    for (int64_t d = 0; d < key_dim; ++d) s.push_back(state[d * value_dim + c]);
    for (int64_t t = 0; t < tokens; ++t) {
      const float *const key = &k[t * key_dim], *const query = &q[t * key_dim];
      double known = 0, sum = 0;
      for (int64_t d = 0; d < key_dim; ++d) known += key[d] * (s[d] *= decay[t]);
      for (int64_t d = 0; d < key_dim; ++d)
        sum += query[d] * (s[d] += key[d] * double{strength[t]} * (v[t * stride + c] - known));
      results.push_back(sum);
    }
    results.insert(results.end(), s.begin(), s.end());
    return results;
  }
};

void expect_rule(const Chunk& before, const Chunk& got) {
  double apart = 0, size = 0;
  for (int64_t c = 0; c < before.value_dim; ++c) {
    const std::vector<double> want = before.column(c);
    for (int64_t i = 0; i < before.tokens + before.key_dim; ++i) {
      const float value = i < before.tokens ? got.out[i * got.stride + c]
                                            : got.state[(i - before.tokens) * got.value_dim + c];
      apart += std::pow(value - want[i], 2);
      size += std::pow(want[i], 2);
    }
  }
  EXPECT_LT(std::sqrt(apart / size), 2e-6);
  for (int64_t t = 0; t < got.tokens; ++t) {
    for (int64_t c = got.value_dim; c < got.stride; ++c) ASSERT_EQ(got.out[t * got.stride + c], 77);
  }
}

TEST(DeltaChunk, EveryInstructionSetFollowsTheRule) {
  std::mt19937 random{3};
  for (const VectorOps* const ops : tables()) {
    for (const auto& [key_dim, value_dim] :
         {std::pair<int64_t, int64_t>{128, 128}, {8, 32}, {24, 96}, {256, 64}}) {
      for (const int64_t tokens : {1, 3, 4, 7, 8, 9, 16, 21, 31, 32}) {
        SCOPED_TRACE(str(ops->isa, ": ", tokens, " tokens, ", key_dim, " x ", value_dim));
        const Chunk before(random, tokens, key_dim, value_dim);
        Chunk chunk = before;
        chunk.run(*ops);
        expect_rule(before, chunk);
      }
    }
  }
}

// Products of decays below the smallest float, and none at all.
TEST(DeltaChunk, FollowsTheRuleWithStrongDecays) {
  std::mt19937 random{4};
  for (const VectorOps* const ops : tables()) {
    SCOPED_TRACE(ops->isa);
    Chunk before(random, kDeltaChunk, 64, 32);
    for (int64_t i = 0; i < kDeltaChunk; ++i)
      before.decay[i] = i % 3 == 0 ? 1 : i < 20 ? 1e-30f : 0;
    Chunk chunk = before;
    chunk.run(*ops);
    expect_rule(before, chunk);
  }
}

TEST(DeltaChunk, ValueThatIsNotFiniteReachesOnlyLaterTokensOfItsColumn) {
  std::mt19937 random{5};
  for (const VectorOps* const ops : tables()) {
    for (const float value : {std::numeric_limits<float>::infinity(), NAN}) {
      for (const int64_t at : {0, 5, 18, 30}) {
        SCOPED_TRACE(str(ops->isa, ": token ", at));
        Chunk finite(random, kDeltaChunk - 1, 16, 64);
        Chunk other = finite;
        other.v[at * other.stride + 33] = value;
        finite.run(*ops);
        other.run(*ops);
        for (int64_t t = 0; t < finite.tokens; ++t) {
          for (int64_t c = 0; c < finite.value_dim; ++c) {
            const int64_t i = t * finite.stride + c;
            if (c == 33 && t >= at)
              ASSERT_FALSE(std::isfinite(other.out[i])) << t;
            else
              ASSERT_EQ(other.out[i], finite.out[i]) << t << ", " << c;
          }
        }
        EXPECT_FALSE(std::isfinite(other.state[33]));
        EXPECT_EQ(other.state[32], finite.state[32]);
      }
    }
  }
}

}  // namespace
}  // namespace moracle::cpu::delta_chunk_test
