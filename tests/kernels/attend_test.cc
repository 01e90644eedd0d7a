// What attention promises about bits: a token's follow from its own sequence alone, whatever else
// is in the batch, in however many steps the sequence came and however many threads there are.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"
#include "moracle/device.h"

namespace moracle {
namespace {

struct Sequence {
  std::vector<float> q, k, v;  // of all its tokens
  int64_t tokens;
};

class AttendTest : public ::testing::Test {
 protected:
  Sequence sequence(int64_t tokens, const AttentionShape& shape) {
    auto draw = [&](int64_t count) {
      std::normal_distribution<float> normal;
      std::vector<float> values(count);
      for (float& value : values) value = normal(random_);
      return values;
    };
    return {draw(tokens * shape.num_heads * shape.head_dim),
            draw(tokens * shape.num_kv_heads * shape.head_dim),
            draw(tokens * shape.num_kv_heads * shape.value_dim), tokens};
  }

  /// All sequences side by side, each in steps of at most `step` tokens; what comes of each.
  static std::vector<std::vector<float>> run(const std::vector<Sequence>& sequences,
                                             const AttentionShape& shape, int64_t step,
                                             int threads) {
    auto device = *open_device("cpu", threads);
    const int64_t q_row = shape.num_heads * shape.head_dim,
                  k_row = shape.num_kv_heads * shape.head_dim,
                  v_row = shape.num_kv_heads * shape.value_dim,
                  out_row = shape.num_heads * shape.value_dim;
    std::vector<std::vector<float>> keys, values, outs;
    int64_t longest = 0;
    for (const Sequence& s : sequences) {
      keys.emplace_back(s.tokens * k_row, NAN);
      values.emplace_back(s.tokens * v_row, NAN);
      outs.emplace_back(s.tokens * out_row);
      longest = std::max(longest, s.tokens);
    }
    for (int64_t at = 0; at < longest; at += step) {
      std::vector<float> q, k, v;
      std::vector<Span> spans;
      int64_t tokens = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const Sequence& s = sequences[i];
        const int64_t count = std::min(step, s.tokens - at);
        if (count <= 0) continue;
        spans.push_back({tokens, count, at, keys[i].data(), values[i].data()});
        q.insert(q.end(), &s.q[at * q_row], &s.q[at * q_row] + count * q_row);
        k.insert(k.end(), &s.k[at * k_row], &s.k[at * k_row] + count * k_row);
        v.insert(v.end(), &s.v[at * v_row], &s.v[at * v_row] + count * v_row);
        tokens += count;
      }
      std::vector<float> out(tokens * out_row);
      EXPECT_TRUE(device->ops().attend(Matrix::f32(q.data(), tokens, q_row),
                                       Matrix::f32(k.data(), tokens, k_row),
                                       Matrix::f32(v.data(), tokens, v_row), spans, shape,
                                       Matrix::f32(out.data(), tokens, out_row), {}));
      const float* from = out.data();
      for (size_t i = 0; i < sequences.size(); ++i) {
        const int64_t count = std::min(step, sequences[i].tokens - at);
        if (count <= 0) continue;
        std::copy_n(from, count * out_row, &outs[i][at * out_row]);
        from += count * out_row;
      }
    }
    return outs;
  }

  std::mt19937 random_{11};
};

TEST_F(AttendTest, ATokensBitsFollowFromItsSequenceAlone) {
  const std::vector<float> sinks = {0.5f, -2, 3, 1, 0, 2, -1, 1.5f};
  // Grouped heads, a head of keys for each, many heads on one; odd sizes; a window; sinks.
  std::vector<AttentionShape> shapes = {{8, 2, 32, 32, 0.2f},
                                        {3, 3, 20, 13, 0.25f},
                                        {70, 1, 8, 8, 0.3f},
                                        {8, 4, 16, 24, 0.25f},
                                        {8, 4, 16, 16, 0.25f}};
  shapes[3].window = 100;
  shapes[4].sinks = sinks.data();
  for (const AttentionShape& shape : shapes) {
    std::vector<Sequence> sequences;
    for (int64_t tokens : {600, 3, 270}) sequences.push_back(sequence(tokens, shape));
    std::vector<std::vector<float>> alone;
    for (const Sequence& one : sequences) alone.push_back(run({one}, shape, 1000, 1)[0]);
    for (int threads : {1, 3}) {
      for (int64_t step : {1000, 257, 7}) {
        const auto together = run(sequences, shape, step, threads);
        for (size_t i = 0; i < sequences.size(); ++i) {
          EXPECT_EQ(
              0, std::memcmp(together[i].data(), alone[i].data(), alone[i].size() * sizeof(float)))
              << shape.num_heads << " heads, sequence " << i << ", steps of " << step << ", "
              << threads << " threads";
        }
      }
    }
  }
}

// One token at a time over a context of several rounds of stretches, threads sharing it.
TEST_F(AttendTest, ALongContextHasTheSameBitsOnAnyNumberOfThreads) {
  const AttentionShape shape{8, 1, 64, 64, 0.125f};
  const std::vector<Sequence> one = {sequence(9001, shape)};
  auto last = [&](int threads) {
    auto device = *open_device("cpu", threads);
    Sequence s = one[0];
    const int64_t position = s.tokens - 1;
    std::vector<float> keys = s.k, values = s.v, out(8 * 64);
    const Span spans[] = {{0, 1, position, keys.data(), values.data()}};
    EXPECT_TRUE(device->ops().attend(Matrix::f32(&s.q[position * 512], 1, 512),
                                     Matrix::f32(&s.k[position * 64], 1, 64),
                                     Matrix::f32(&s.v[position * 64], 1, 64), spans, shape,
                                     Matrix::f32(out.data(), 1, 512), {}));
    return out;
  };
  const std::vector<float> want = last(1);
  for (int threads : {2, 3, 5}) EXPECT_EQ(last(threads), want) << threads;
}

// A NaN that a later token wrote is not seen by an earlier one of the same step.
TEST_F(AttendTest, LaterTokensCannotSpoilEarlierOnes) {
  const AttentionShape shape{2, 2, 16, 16, 0.25f};
  Sequence s = sequence(40, shape), spoilt = s;
  for (int64_t i = 20 * 32; i < 40 * 32; ++i) spoilt.k[i] = NAN, spoilt.v[i] = INFINITY;
  const auto want = run({s}, shape, 40, 1)[0], got = run({spoilt}, shape, 40, 1)[0];
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), 20 * 32 * sizeof(float)));
}

// Every table that this CPU runs, in double beside it.
TEST_F(AttendTest, EveryInstructionSetFindsTheSameSoftmax) {
  const int64_t dim = 37, value_dim = 21, keys = cpu::kAttendStretch;
  const Sequence s = sequence(keys, {1, 1, dim, value_dim, 1});
  std::vector<const cpu::VectorOps*> tables = {&cpu::kPortableVectorOps};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    tables.push_back(&cpu::kAvx2VectorOps);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    tables.push_back(&cpu::kAvx512VectorOps);
#endif
  for (const cpu::VectorOps* ops : tables) {
    std::vector<float> out(7 * value_dim, NAN), room(cpu::kAttendRoom);
    cpu::AttendRow rows[7];
    for (int r = 0; r < 7; ++r) {
      rows[r] = {&s.q[r * dim], r * 9, r * 40 + 1, &out[r * value_dim], 0, 0};
    }
    rows[6].begin = rows[6].end;  // sees nothing
    ops->attend({rows, 7, s.k.data(), s.v.data(), dim, value_dim, dim, value_dim, 0, keys, 0.3f,
                 room.data()});
    EXPECT_EQ(rows[6].largest, -INFINITY);
    EXPECT_EQ(rows[6].sum, 0);
    for (int r = 0; r < 6; ++r) {
      std::vector<double> scores;
      double largest = -INFINITY, sum = 0;
      for (int64_t i = rows[r].begin; i < rows[r].end; ++i) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += double{s.q[r * dim + d]} * s.k[i * dim + d];
        scores.push_back(score * 0.3f);
        largest = std::max(largest, scores.back());
      }
      EXPECT_NEAR(rows[r].largest, largest, 1e-5) << ops->isa;
      for (double& score : scores) sum += score = std::exp(score - largest);
      EXPECT_NEAR(rows[r].sum, sum, 1e-5 * sum) << ops->isa;
      for (int64_t c = 0; c < value_dim; ++c) {
        double want = 0;
        for (size_t i = 0; i < scores.size(); ++i)
          want += scores[i] * s.v[(rows[r].begin + static_cast<int64_t>(i)) * value_dim + c];
        EXPECT_NEAR(out[r * value_dim + c], want, 2e-5 * sum) << ops->isa << " row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace moracle
