// Tests attention on a CPU: batch invariance over steps and thread counts, rounding of 16-bit
// caches, and every instruction set. attend_ops_test.cc holds the tests of all devices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/isa_here.h"
#include "kernels/ops.h"
#include "kernels/paged.h"
#include "moracle/device.h"
#include "support/floats.h"

namespace moracle::attend_test {
namespace {

struct Sequence {
  std::vector<float> q, k, v;  // of all its tokens
  int64_t tokens;
};

class AttendTest : public ::testing::Test {
 protected:
  Sequence sequence(int64_t tokens, const AttentionShape& shape) {
    const auto draw = [&](int64_t count) { return testing::normal_floats(random_, count); };
    return {draw(tokens * shape.num_heads * shape.head_dim),
            draw(tokens * shape.num_kv_heads * shape.head_dim),
            draw(tokens * shape.num_kv_heads * shape.value_dim), tokens};
  }

  /// Runs all sequences in one batch, in steps of at most `step` tokens each, and returns each
  /// output.
  static std::vector<std::vector<float>> run(const std::vector<Sequence>& sequences,
                                             AttentionShape shape, int64_t step, int threads) {
    auto device = *open_device("cpu", threads);
    const int64_t q_row = shape.num_heads * shape.head_dim,
                  k_row = shape.num_kv_heads * shape.head_dim,
                  v_row = shape.num_kv_heads * shape.value_dim,
                  out_row = shape.num_heads * shape.value_dim;
    std::vector<int64_t> capacities;
    std::vector<std::vector<float>> outs;
    int64_t longest = 0;
    for (const Sequence& s : sequences) {
      capacities.push_back(s.tokens);
      outs.emplace_back(s.tokens * out_row);
      longest = std::max(longest, s.tokens);
    }
    testing::PagedCaches caches(capacities, k_row, v_row, shape.cache.dtype, 512,
                                shape.num_kv_heads);
    shape.cache = caches.layer();
    for (int64_t at = 0; at < longest; at += step) {
      std::vector<float> q, k, v;
      std::vector<testing::PagedCaches::Tokens> together;
      int64_t tokens = 0;
      for (size_t i = 0; i < sequences.size(); ++i) {
        const Sequence& s = sequences[i];
        const int64_t count = std::min(step, s.tokens - at);
        if (count <= 0) continue;
        together.push_back({i, at, count});
        q.insert(q.end(), &s.q[at * q_row], &s.q[at * q_row] + count * q_row);
        k.insert(k.end(), &s.k[at * k_row], &s.k[at * k_row] + count * k_row);
        v.insert(v.end(), &s.v[at * v_row], &s.v[at * v_row] + count * v_row);
        tokens += count;
      }
      std::vector<float> out(tokens * out_row);
      const Batch& batch = caches.batch(together, *device);
      EXPECT_TRUE(device->ops().append(Matrix::f32(k.data(), tokens, k_row),
                                       Matrix::f32(v.data(), tokens, v_row), batch, shape.cache,
                                       {}));
      EXPECT_TRUE(device->ops().attend(Matrix::f32(q.data(), tokens, q_row), batch, shape,
                                       Matrix::f32(out.data(), tokens, out_row), nullptr, {}));
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

TEST_F(AttendTest, TokenBitsDependOnlyOnItsSequence) {
  const std::vector<float> sinks = {0.5f, -2, 3, 1, 0, 2, -1, 1.5f};
  struct Case {
    const char* name;
    AttentionShape shape;
  } cases[] = {{"grouped heads", {8, 2, 32, 32, 0.2f}},
               {"one key head per head, odd sizes", {3, 3, 20, 13, 0.25f}},
               {"many heads per key head", {70, 1, 8, 8, 0.3f}},
               {"window of 100", {8, 4, 16, 24, 0.25f}},
               {"sinks", {8, 4, 16, 16, 0.25f}}};
  cases[3].shape.window = 100;
  cases[4].shape.sinks = sinks.data();
  const struct {
    int threads;
    int64_t step;
  } runs[] = {{1, 1000}, {1, 257}, {1, 7}, {3, 1000}, {3, 257}, {3, 7}};
  for (const auto& [name, shape] : cases) {
    SCOPED_TRACE(name);
    std::vector<Sequence> sequences;
    for (int64_t tokens : {600, 3, 270}) sequences.push_back(sequence(tokens, shape));
    std::vector<std::vector<float>> alone;
    for (const Sequence& one : sequences) alone.push_back(run({one}, shape, 1000, 1)[0]);
    for (const auto& [threads, step] : runs) {
      const auto together = run(sequences, shape, step, threads);
      for (size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_EQ(0,
                  std::memcmp(together[i].data(), alone[i].data(), alone[i].size() * sizeof(float)))
            << "sequence " << i << ", steps of " << step << ", " << threads << " threads";
      }
    }
  }
}

// Decodes one token at a time over a context of several rounds of stretches, shared by threads.
TEST_F(AttendTest, LongContextHasSameBitsForAnyThreadCount) {
  const AttentionShape shape{8, 1, 64, 64, 0.125f};
  const std::vector<Sequence> one = {sequence(9001, shape)};
  auto last = [&](int threads) {
    auto device = *open_device("cpu", threads);
    const Sequence& s = one[0];
    const int64_t position = s.tokens - 1;
    testing::PagedCaches caches({s.tokens}, 64, 64, DType::kF32, 1024);
    for (int64_t i = 0; i < s.tokens; ++i) {
      caches.set(caches.key(0, i), &s.k[i * 64], 64);
      caches.set(caches.value(0, i), &s.v[i * 64], 64);
    }
    std::vector<float> q(&s.q[position * 512], &s.q[position * 512] + 512), out(8 * 64);
    AttentionShape paged = shape;
    paged.cache = caches.layer();
    EXPECT_TRUE(device->ops().attend(Matrix::f32(q.data(), 1, 512),
                                     caches.batch({{0, position, 1}}, *device), paged,
                                     Matrix::f32(out.data(), 1, 512), nullptr, {}));
    return out;
  };
  const std::vector<float> want = last(1);
  for (int threads : {2, 3, 5}) EXPECT_EQ(last(threads), want) << threads;
}

// A NaN written by a later token of the same step does not affect earlier tokens.
TEST_F(AttendTest, NanInLaterTokenLeavesEarlierTokens) {
  const AttentionShape shape{2, 2, 16, 16, 0.25f};
  Sequence s = sequence(40, shape), spoilt = s;
  for (int64_t i = 20 * 32; i < 40 * 32; ++i) spoilt.k[i] = NAN, spoilt.v[i] = INFINITY;
  const auto want = run({s}, shape, 40, 1)[0], got = run({spoilt}, shape, 40, 1)[0];
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), 20 * 32 * sizeof(float)));
}

// Let u be the rounding unit (2^-9, 2^-12). A score is off by at most δ = scale · u · Σ|q·k|. So a
// weight is off by a factor within e^(±2δ), and an output by at most (e^(2δ) - 1 + u · e^(2δ)) ·
// max|v|.
TEST_F(AttendTest, SixteenBitCacheStaysWithinRoundingOfKeysAndValues) {
  AttentionShape shape{4, 2, 64, 48, 0.125f};
  const Sequence s = sequence(200, shape);
  const auto want = run({s}, shape, 200, 1)[0];
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const double u = dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12;
    // Below 2^-14, f16 values are multiples of 2^-24.
    const double least = dtype == DType::kF16 ? 0x1p-25 : 0;
    shape.cache.dtype = dtype;
    const auto got = run({s}, shape, 200, 2)[0];
    double largest_share = 0;
    for (int64_t t = 0; t < 200; ++t) {
      for (int64_t head = 0; head < 4; ++head) {
        double delta = 0, largest = 0;
        for (int64_t i = 0; i <= t; ++i) {
          double sum = 0;
          for (int64_t d = 0; d < 64; ++d) {
            sum += std::abs(double{s.q[(t * 4 + head) * 64 + d]}) *
                   (u * std::abs(double{s.k[(i * 2 + head / 2) * 64 + d]}) + least);
          }
          delta = std::max(delta, shape.scale * sum);
          for (int64_t d = 0; d < 48; ++d)
            largest = std::max(largest, std::abs(double{s.v[(i * 2 + head / 2) * 48 + d]}));
        }
        const double grown = std::exp(2 * delta);
        const double bound = (grown - 1 + u * grown) * largest + least + 1e-5 * largest;
        for (int64_t d = 0; d < 48; ++d) {
          const int64_t at = (t * 4 + head) * 48 + d;
          const double off = std::abs(double{got[at]} - want[at]);
          ASSERT_LE(off, bound) << name(dtype) << " token " << t;
          largest_share = std::max(largest_share, off / bound);
        }
      }
    }
    EXPECT_GT(largest_share, 0) << "nothing was rounded";
  }
}

// The vector_ops tables widen to the same values.
TEST_F(AttendTest, EveryInstructionSetReadsSixteenBitCacheExactly) {
  const int64_t dim = 37, value_dim = 21, keys = 100;
  const Sequence s = sequence(keys, {1, 1, dim, value_dim, 1});
  std::vector<const cpu::VectorOps*> tables = {&cpu::kPortableVectorOps, &cpu::vector_ops()};
#if defined(__x86_64__)
  if (cpu::has(Isa::kAvx2)) tables.push_back(&cpu::kAvx2VectorOps);
#endif
  for (const cpu::VectorOps* ops : tables) {
    for (const cpu::CacheType cache : {cpu::CacheType::kBF16, cpu::CacheType::kF16}) {
      const DType dtype = cache == cpu::CacheType::kBF16 ? DType::kBF16 : DType::kF16;
      std::vector<uint16_t> k16, v16;
      std::vector<float> k32, v32;
      const auto keep = [&](const std::vector<float>& from, auto& to16, auto& to32, float factor) {
        for (const float value : from) {
          const float scaled = value * factor;  // some become subnormal in f16
          to16.push_back(testing::half_bits(dtype, scaled));
          to32.push_back(testing::rounded_to(dtype, scaled));
        }
      };
      keep(s.k, k16, k32, 1);
      keep(s.v, v16, v32, 0x1p-13f);
      const auto run_once = [&](const void* k, const void* v, cpu::CacheType type) {
        std::vector<float> out(5 * value_dim), room(cpu::kAttendScratch);
        cpu::AttendRow rows[5];
        for (int r = 0; r < 5; ++r)
          rows[r] = {&s.q[r * dim], r, r * 20 + 13, &out[r * value_dim], 0, 0};
        ops->attend(
            {rows, 5, k, v, dim, value_dim, dim, value_dim, 0, keys, 0.3f, room.data(), type});
        return out;
      };
      EXPECT_EQ(run_once(k16.data(), v16.data(), cache),
                run_once(k32.data(), v32.data(), cpu::CacheType::kF32))
          << ops->isa;
    }
  }
}

// Compares every table that this CPU runs with a double reference.
TEST_F(AttendTest, EveryInstructionSetGivesSameSoftmax) {
  const int64_t dim = 37, value_dim = 21, keys = cpu::kAttendStretch;
  const Sequence s = sequence(keys, {1, 1, dim, value_dim, 1});
  std::vector<const cpu::VectorOps*> tables = {&cpu::kPortableVectorOps};
#if defined(__x86_64__)
  if (cpu::has(Isa::kAvx2)) tables.push_back(&cpu::kAvx2VectorOps);
  if (cpu::has(Isa::kAvx512 | Isa::kAvx2)) tables.push_back(&cpu::kAvx512VectorOps);
#endif
  for (const cpu::VectorOps* ops : tables) {
    std::vector<float> out(7 * value_dim, NAN), room(cpu::kAttendScratch);
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
}  // namespace moracle::attend_test
