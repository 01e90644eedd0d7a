// Tests attention on a CPU: batch invariance over steps and thread counts, rounding of 16-bit
// caches, and every instruction set. attend_ops_test.cc holds the tests of all devices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/text.h"
#include "kernels/cpu/simd/cached_codes.h"
#include "kernels/cpu/simd/vector_ops.h"
#include "kernels/isa_here.h"
#include "kernels/ops.h"
#include "kernels/ops/paged.h"
#include "moracle/device.h"
#include "quant/activation.h"
#include "support/floats.h"

namespace moracle::attend_test {
namespace {

struct Sequence {
  std::vector<float> q, k, v;  // of all its tokens
  int64_t tokens;
};

class CpuAttend : public ::testing::Test {
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
      EXPECT_TRUE(kernel_device(*device).ops().append(Matrix::f32(k.data(), tokens, k_row),
                                                      Matrix::f32(v.data(), tokens, v_row), batch,
                                                      shape.cache, {}));
      EXPECT_TRUE(kernel_device(*device).ops().attend(
          Matrix::f32(q.data(), tokens, q_row), batch, shape,
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

TEST_F(CpuAttend, TokenBitsDependOnlyOnItsSequence) {
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
  for (auto& [name, shape] : cases) {
    std::vector<Sequence> sequences;
    for (int64_t tokens : {600, 3, 270}) sequences.push_back(sequence(tokens, shape));
    for (const DType dtype : {DType::kF32, DType::kI8}) {
      SCOPED_TRACE(str(name, ", ", moracle::name(dtype)));
      shape.cache.dtype = dtype;
      std::vector<std::vector<float>> alone;
      for (const Sequence& one : sequences) alone.push_back(run({one}, shape, 1000, 1)[0]);
      for (const auto& [threads, step] : runs) {
        const auto together = run(sequences, shape, step, threads);
        for (size_t i = 0; i < sequences.size(); ++i) {
          EXPECT_EQ(
              0, std::memcmp(together[i].data(), alone[i].data(), alone[i].size() * sizeof(float)))
              << "sequence " << i << ", steps of " << step << ", " << threads << " threads";
        }
      }
    }
  }
}

// Decodes one token at a time over a context of several rounds of KV blocks, split over threads.
TEST_F(CpuAttend, LongContextHasSameBitsForAnyThreadCount) {
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
    EXPECT_TRUE(kernel_device(*device).ops().attend(
        Matrix::f32(q.data(), 1, 512), caches.batch({{0, position, 1}}, *device), paged,
        Matrix::f32(out.data(), 1, 512), nullptr, {}));
    return out;
  };
  const std::vector<float> want = last(1);
  for (int threads : {2, 3, 5}) EXPECT_EQ(last(threads), want) << threads;
}

// The vector_ops tables of this CPU, with every version of attend_int8.
std::vector<const cpu::VectorOps*> tables() {
  std::vector<const cpu::VectorOps*> all = {&cpu::kPortableVectorOps};
#if defined(__x86_64__)
  if (cpu::has(Isa::kAvx2)) all.push_back(&cpu::kAvx2VectorOps);
  if (cpu::has(Isa::kAvx2 | Isa::kAvxVnni)) {
    static cpu::VectorOps vnni = cpu::kAvx2VectorOps;
    vnni.isa = "avx_vnni", vnni.attend_int8 = cpu::attend_int8_avx_vnni;
    all.push_back(&vnni);
  }
  if (cpu::has(Isa::kAvx512 | Isa::kAvx2)) all.push_back(&cpu::kAvx512VectorOps);
  if (cpu::has(Isa::kAvx512 | Isa::kAvx2 | Isa::kAvx512Vnni)) {
    static cpu::VectorOps vnni = cpu::kAvx512VectorOps;
    vnni.isa = "avx512_vnni", vnni.attend_int8 = cpu::attend_int8_avx512_vnni;
    all.push_back(&vnni);
  }
#endif
  return all;
}

// A later token of the same step writes NaN.
TEST_F(CpuAttend, NanInLaterTokenDoesNotChangeEarlierTokens) {
  const AttentionShape shape{2, 2, 16, 16, 0.25f};
  Sequence s = sequence(40, shape), spoilt = s;
  for (int64_t i = 20 * 32; i < 40 * 32; ++i) spoilt.k[i] = NAN, spoilt.v[i] = INFINITY;
  const auto want = run({s}, shape, 40, 1)[0], got = run({spoilt}, shape, 40, 1)[0];
  EXPECT_EQ(0, std::memcmp(got.data(), want.data(), 20 * 32 * sizeof(float)));
}

// Prompts with bf16 products. Let u = 2^-8 bound the relative error of a product of two rounded
// numbers. A score is off by at most δ = scale · u · Σ|q·k|; the other bounds are those of a 16-bit
// cache, with rounded weights.
TEST_F(CpuAttend, Bf16ProductsStayWithinRoundingOfOperands) {
  if (cpu::vector_ops().attend_bf16 == nullptr) GTEST_SKIP() << "this CPU has no avx512_bf16";
  const std::vector<float> sinks = {0.5f, -2, 3, 1};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    for (const int64_t window : {0, 100}) {
      if (window > 0 && dtype != DType::kF32) continue;
      SCOPED_TRACE(str(name(dtype), ", window ", window));
      AttentionShape shape{4, 2, 64, 48, 0.125f};
      shape.window = window;
      shape.sinks = window > 0 ? sinks.data() : nullptr;
      shape.cache.dtype = dtype;
      const Sequence s = sequence(300, shape);
      const auto want = run({s}, shape, 300, 1)[0];
      shape.bf16_products = true;
      const auto got = run({s}, shape, 300, 2)[0];
      EXPECT_TRUE(want != got);
      double largest_share = 0;
      for (int64_t t = 0; t < 300; ++t) {
        for (int64_t head = 0; head < 4; ++head) {
          double delta = 0, largest = 0;
          for (int64_t i = shape.first_seen(t); i <= t; ++i) {
            double sum = 0;
            for (int64_t d = 0; d < 64; ++d) {
              sum +=
                  std::abs(double{s.q[(t * 4 + head) * 64 + d]} * s.k[(i * 2 + head / 2) * 64 + d]);
            }
            delta = std::max(delta, shape.scale * sum * 0x1p-8 * 1.1);
            for (int64_t d = 0; d < 48; ++d)
              largest = std::max(largest, std::abs(double{s.v[(i * 2 + head / 2) * 48 + d]}));
          }
          const double grown = std::exp(2 * delta);
          const double bound = (grown - 1 + 0x1p-7 * grown) * largest * 1.1 + 1e-5;
          for (int64_t d = 0; d < 48; ++d) {
            const int64_t at = (t * 4 + head) * 48 + d;
            const double off = std::abs(double{got[at]} - want[at]);
            ASSERT_LE(off, bound) << "token " << t;
            largest_share = std::max(largest_share, off / bound);
          }
        }
      }
      EXPECT_GT(largest_share, 0.01) << "the bound is too wide to find an error";
    }
  }
}

// Compares bf16 products with a double reference over operands that bf16 holds exactly.
TEST_F(CpuAttend, Bf16ProductsFollowFormula) {
  const cpu::VectorOps& ops = cpu::vector_ops();
  if (ops.attend_bf16 == nullptr) GTEST_SKIP() << "this CPU has no avx512_bf16";
  const int64_t dim = 96, value_dim = 80, keys = cpu::kKvBlock;
  Sequence s = sequence(keys, {1, 1, dim, value_dim, 1});
  for (auto* numbers : {&s.q, &s.k, &s.v})
    for (float& x : *numbers) x = std::round(x * 16) / 16;
  for (const int num_rows : {1, 3, 4, 7, 64, 150}) {
    SCOPED_TRACE(num_rows);
    std::vector<float> out(num_rows * value_dim, NAN),
        scratch(cpu::kAttendScratch + cpu::bf16_scratch(dim, value_dim) + 16);
    std::vector<cpu::AttendRow> rows(num_rows);
    for (int r = 0; r < num_rows; ++r)
      rows[r] = {&s.q[r * dim],       r * 2, std::min<int64_t>(r * 5 + 17, keys),
                 &out[r * value_dim], 0,     0};
    if (num_rows > 3) rows[num_rows - 2].begin = rows[num_rows - 2].end;  // sees nothing
    cpu::AttendArgs args{rows.data(), num_rows,  s.k.data(), s.v.data(), dim,  value_dim,
                         dim,         value_dim, 0,          keys,       0.1f, scratch.data()};
    args.packed_keys = reinterpret_cast<uint32_t*>(
        (reinterpret_cast<uintptr_t>(scratch.data() + cpu::kAttendScratch) + 63) / 64 * 64);
    args.packed_values = args.packed_keys + keys / 2 * dim;  // panels of 64 keys fill it
    ASSERT_TRUE(ops.pack_bf16(args));
    ops.attend_bf16(args);
    for (int r = 0; r < num_rows; ++r) {
      std::vector<double> scores;
      double largest = -INFINITY, sum = 0;
      for (int64_t i = rows[r].begin; i < rows[r].end; ++i) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += double{s.q[r * dim + d]} * s.k[i * dim + d];
        scores.push_back(score * 0.1f);
        largest = std::max(largest, scores.back());
      }
      if (scores.empty()) {
        EXPECT_EQ(rows[r].largest, -INFINITY);
        EXPECT_EQ(rows[r].sum, 0);
      } else {
        EXPECT_NEAR(rows[r].largest, largest, 1e-5);
      }
      for (double& score : scores) sum += score = std::exp(score - largest);
      EXPECT_NEAR(rows[r].sum, sum, 0x1p-8 * sum);
      for (int64_t c = 0; c < value_dim; ++c) {
        double exact = 0, bound = 1e-5 * sum;
        for (size_t i = 0; i < scores.size(); ++i) {
          const double value = s.v[(rows[r].begin + static_cast<int64_t>(i)) * value_dim + c];
          exact += scores[i] * value, bound += scores[i] * std::abs(value) * 0x1p-8;
        }
        EXPECT_NEAR(out[r * value_dim + c], exact, bound) << "row " << r;
      }
    }
  }
}

TEST_F(CpuAttend, Bf16ProductsDependOnlyOnSequenceFromSixteenTokensOn) {
  if (cpu::vector_ops().attend_bf16 == nullptr) GTEST_SKIP() << "this CPU has no avx512_bf16";
  AttentionShape shape{8, 2, 32, 32, 0.2f};
  shape.bf16_products = true;
  std::vector<Sequence> sequences;
  // The last step of each has at least 16 tokens, too.
  for (const int64_t tokens : {640, 32, 272}) sequences.push_back(sequence(tokens, shape));
  std::vector<std::vector<float>> alone;
  for (const Sequence& one : sequences) alone.push_back(run({one}, shape, 1000, 1)[0]);
  for (const int threads : {1, 3}) {
    for (const int64_t step : {16, 40, 1000})
      EXPECT_TRUE(run(sequences, shape, step, threads) == alone) << threads << " threads, " << step;
  }
  // Fewer tokens, or a request for the same bits in every step: f32.
  std::vector<std::vector<float>> in_f32;
  shape.bf16_products = false;
  for (const Sequence& one : sequences) in_f32.push_back(run({one}, shape, 1000, 1)[0]);
  shape.bf16_products = true;
  EXPECT_TRUE(run(sequences, shape, 15, 2) == in_f32);
  shape.batch_invariant = true;
  EXPECT_TRUE(run(sequences, shape, 1000, 2) == in_f32);
}

TEST_F(CpuAttend, NonFiniteTokenWithBf16ProductsReachesOnlyTokensThatSeeIt) {
  AttentionShape shape{2, 2, 32, 32, 0.25f};
  shape.bf16_products = true;
  Sequence s = sequence(40, shape), spoilt = s;
  for (int64_t i = 21 * 64; i < 40 * 64; ++i) spoilt.k[i] = NAN, spoilt.v[i] = INFINITY;
  const auto want = run({s}, shape, 40, 1)[0], got = run({spoilt}, shape, 40, 1)[0];
  for (int64_t i = 0; i < 21 * 64; ++i) ASSERT_NEAR(got[i], want[i], 0.1) << i;
  for (int64_t i = 21 * 64; i < 40 * 64; ++i) ASSERT_FALSE(std::isfinite(got[i])) << i;
}

// Let u be the rounding unit (2^-9, 2^-12). A score is off by at most δ = scale · u · Σ|q·k|. So a
// weight is off by a factor within e^(±2δ), and an output by at most (e^(2δ) - 1 + u · e^(2δ)) ·
// max|v|.
TEST_F(CpuAttend, SixteenBitCacheStaysWithinRoundingOfKeysAndValues) {
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
TEST_F(CpuAttend, ReadsEveryE4m3CodeExactlyOnEveryInstructionSet) {
  // One position with weight 1: the output is the value.
  for (const cpu::VectorOps* ops : tables()) {
    for (const int64_t value_dim : {256, 3}) {
      std::vector<uint8_t> key(32, 0x38), codes(256);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
      for (int64_t first = 0; first + value_dim <= 256; first += value_dim) {
        std::vector<float> query(32, 1), out(value_dim), scratch(cpu::kAttendScratch);
        cpu::AttendRow row{query.data(), 0, 1, out.data(), 0, 0};
        ops->attend({&row, 1, key.data(), &codes[first], 32, value_dim, 32, value_dim, 0, 1, 1,
                     scratch.data(), cpu::CacheType::kE4M3});
        EXPECT_EQ(row.largest, 32) << ops->isa;
        for (int64_t i = 0; i < value_dim; ++i) {
          const float want = e4m3_to_float(codes[first + i]);
          if (std::isnan(want))
            EXPECT_TRUE(std::isnan(out[i])) << ops->isa << " code " << first + i;
          else
            EXPECT_EQ(out[i], want) << ops->isa << " code " << first + i;
        }
      }
    }
  }
}

TEST_F(CpuAttend, ReadsSixteenBitCacheExactlyOnEveryInstructionSet) {
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
        std::vector<float> out(5 * value_dim), scratch(cpu::kAttendScratch);
        cpu::AttendRow rows[5];
        for (int r = 0; r < 5; ++r)
          rows[r] = {&s.q[r * dim], r, r * 20 + 13, &out[r * value_dim], 0, 0};
        ops->attend(
            {rows, 5, k, v, dim, value_dim, dim, value_dim, 0, keys, 0.3f, scratch.data(), type});
        return out;
      };
      EXPECT_EQ(run_once(k16.data(), v16.data(), cache),
                run_once(k32.data(), v32.data(), cpu::CacheType::kF32))
          << ops->isa;
    }
  }
}

// Compares every table of this CPU with a double reference.
TEST_F(CpuAttend, SoftmaxIsEqualOnEveryInstructionSet) {
  const int64_t dim = 37, value_dim = 21, keys = cpu::kKvBlock;
  const Sequence s = sequence(keys, {1, 1, dim, value_dim, 1});
  std::vector<const cpu::VectorOps*> tables = {&cpu::kPortableVectorOps};
#if defined(__x86_64__)
  if (cpu::has(Isa::kAvx2)) tables.push_back(&cpu::kAvx2VectorOps);
  if (cpu::has(Isa::kAvx512 | Isa::kAvx2)) tables.push_back(&cpu::kAvx512VectorOps);
#endif
  for (const cpu::VectorOps* ops : tables) {
    std::vector<float> out(7 * value_dim, NAN), scratch(cpu::kAttendScratch);
    cpu::AttendRow rows[7];
    for (int r = 0; r < 7; ++r) {
      rows[r] = {&s.q[r * dim], r * 9, r * 40 + 1, &out[r * value_dim], 0, 0};
    }
    rows[6].begin = rows[6].end;  // sees nothing
    ops->attend({rows, 7, s.k.data(), s.v.data(), dim, value_dim, dim, value_dim, 0, keys, 0.3f,
                 scratch.data()});
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

// Keys and values of one head as int8 codes in the order of cached_codes.h. Bytes that no position
// has are random.
struct Codes {
  Codes(std::mt19937& random, const std::vector<float>& rows, int64_t positions, int64_t size,
        bool keys)
      : dim(size), columns(cached_columns(DType::kI8, size)) {
    for (int64_t i = 0; i < cpu::kKvBlock * columns; ++i)
      bytes.push_back(static_cast<int8_t>(random()));
    scales.assign(cpu::kKvBlock, NAN);
    for (int64_t i = 0; i < positions; ++i) {
      std::vector<int8_t> codes(dim);
      scales[i] = quantize_int8_token(&rows[i * dim], dim, codes.data());
      for (int64_t c = 0; c < dim; ++c) {
        bytes[keys ? cpu::key_code(i, c, columns) : cpu::value_code(i, c, columns)] = codes[c];
        numbers.push_back(static_cast<double>(codes[c]) * scales[i]);
      }
      // A query's codes are 0 there.
    }
  }
  int64_t dim, columns;
  std::vector<int8_t> bytes;
  std::vector<float> scales;
  std::vector<double> numbers;  // what the codes stand for
};

// Compares every table with a softmax in double over the numbers that the codes stand for. A query
// is off by at most q_scale / 2 per column, so a score by δ = scale · q_scale / 2 · Σ|k|. A weight
// times its value's scale is off by w_scale / 2.
TEST_F(CpuAttend, Int8FollowsFormulaOnEveryInstructionSet) {
  const struct {
    int64_t dim, value_dim, positions;
  } cases[] = {{128, 128, 256}, {37, 21, 100}, {64, 48, 17}, {576, 16, 33}, {1, 1, 1}};
  for (const auto& [dim, value_dim, positions] : cases) {
    const Sequence s = sequence(positions, {1, 1, dim, value_dim, 1});
    const Codes keys(random_, s.k, positions, dim, true),
        values(random_, s.v, positions, value_dim, false);
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    constexpr int kRows = 15;  // groups of 8, 4, 2 and 1
    const std::vector<float> queries = testing::normal_floats(random_, kRows * dim, 3);
    std::vector<float> first_out;
    for (const cpu::VectorOps* ops : tables()) {
      SCOPED_TRACE(str(ops->isa, ", ", dim, " columns"));
      std::vector<float> out(kRows * value_dim, NAN),
          scratch(cpu::kAttendScratch + cpu::int8_scratch(dim));
      cpu::AttendRow rows[kRows];
      for (int r = 0; r < kRows; ++r) {
        const int64_t end = std::min<int64_t>(positions, r * 19 + 1),
                      begin = std::min(end, int64_t{r} * 3);
        rows[r] = {&queries[r * dim], begin, end, &out[r * value_dim], 0, 0};
      }
      ops->attend_int8({rows, kRows, keys.bytes.data(), values.bytes.data(), keys.columns,
                        values.columns, dim, value_dim, 0, cpu::kKvBlock, scale, scratch.data(),
                        cpu::CacheType::kF32, keys.scales.data(), values.scales.data()});
      for (int r = 0; r < kRows; ++r) {
        if (rows[r].begin == rows[r].end) {
          EXPECT_EQ(rows[r].largest, -INFINITY);
          EXPECT_EQ(rows[r].sum, 0);
          for (int64_t c = 0; c < value_dim; ++c) EXPECT_EQ(out[r * value_dim + c], 0);
          continue;
        }
        double most_query = 0, delta = 0, largest = -INFINITY, sum = 0, most_weight = 0;
        for (int64_t d = 0; d < dim; ++d)
          most_query = std::max(most_query, std::abs(double{queries[r * dim + d]}));
        const double levels = std::min(32767.0, std::floor(2147483647.0 / (127 * keys.columns)));
        std::vector<double> scores;
        for (int64_t i = rows[r].begin; i < rows[r].end; ++i) {
          double score = 0, size = 0;
          for (int64_t d = 0; d < dim; ++d) {
            score += queries[r * dim + d] * keys.numbers[i * dim + d];
            size += std::abs(keys.numbers[i * dim + d]);
          }
          scores.push_back(score * scale);
          largest = std::max(largest, scores.back());
          delta =
              std::max(delta, scale * (most_query / levels * 0.51 * size + 1e-6 * std::abs(score)));
        }
        ASSERT_NEAR(rows[r].largest, largest, delta + 1e-6);
        for (size_t j = 0; j < scores.size(); ++j) {
          sum += scores[j] = std::exp(scores[j] - largest);
          most_weight = std::max(most_weight, scores[j] * values.scales[rows[r].begin + j]);
        }
        const double grown = std::exp(2 * delta) - 1 + 1e-5;
        ASSERT_NEAR(rows[r].sum, sum, grown * sum);
        for (int64_t c = 0; c < value_dim; ++c) {
          double want = 0, size = 0, codes = 0;
          for (size_t j = 0; j < scores.size(); ++j) {
            const int64_t i = rows[r].begin + static_cast<int64_t>(j);
            const double value = values.numbers[i * value_dim + c];
            want += scores[j] * value, size += scores[j] * std::abs(value);
            codes += std::abs(value) / values.scales[i];
          }
          ASSERT_NEAR(out[r * value_dim + c], want,
                      grown * size + most_weight / 32767 * 0.51 * codes * (1 + grown))
              << "row " << r << " column " << c;
        }
      }
      // VNNI computes the same integers.
      if (std::string_view(ops->isa).ends_with("vnni")) {
        EXPECT_EQ(out, first_out);
      }
      first_out = out;
    }
  }
}

// Quantizing a row changes each number by at most half of its scale. So scores and outputs stay
// within the bounds of a cache with u = 1/254 of the row's largest number.
TEST_F(CpuAttend, Int8CacheStaysWithinRoundingOfKeysAndValues) {
  AttentionShape shape{4, 2, 64, 48, 0.125f};
  const Sequence s = sequence(300, shape);
  const auto want = run({s}, shape, 300, 1)[0];
  shape.cache.dtype = DType::kI8;
  const auto got = run({s}, shape, 300, 2)[0];
  double largest_share = 0, off = 0, size = 0;
  for (int64_t t = 0; t < 300; ++t) {
    for (int64_t head = 0; head < 4; ++head) {
      double delta = 0, largest = 0, most_query = 0, sum_query = 0;
      for (int64_t d = 0; d < 64; ++d) {
        const double q = std::abs(double{s.q[(t * 4 + head) * 64 + d]});
        most_query = std::max(most_query, q), sum_query += q;
      }
      for (int64_t i = 0; i <= t; ++i) {
        double most_key = 0, sum_key = 0;
        for (int64_t d = 0; d < 64; ++d) {
          const double k = std::abs(double{s.k[(i * 2 + head / 2) * 64 + d]});
          most_key = std::max(most_key, k), sum_key += k;
        }
        delta = std::max(delta, shape.scale * (most_key / 254 * sum_query +
                                               most_query / 65534 * (sum_key + most_key)));
        for (int64_t d = 0; d < 48; ++d)
          largest = std::max(largest, std::abs(double{s.v[(i * 2 + head / 2) * 48 + d]}));
      }
      const double grown = std::exp(2 * delta);
      const double bound = (grown - 1 + grown / 254) * largest +
                           static_cast<double>(t + 1) / 65534 * largest * grown + 1e-5 * largest;
      for (int64_t d = 0; d < 48; ++d) {
        const int64_t at = (t * 4 + head) * 48 + d;
        const double error = std::abs(double{got[at]} - want[at]);
        ASSERT_LE(error, bound) << "token " << t;
        largest_share = std::max(largest_share, error / bound);
        off += error * error, size += double{want[at]} * want[at];
      }
    }
  }
  EXPECT_GT(largest_share, 0) << "nothing was rounded";
  EXPECT_LT(std::sqrt(off / size), 0.01);
}

// A key or value that is not finite makes its token's scale NaN. Tokens that do not see it keep
// their bits, and those that see it give NaN.
TEST_F(CpuAttend, NonFiniteTokenInInt8CacheReachesOnlyTokensThatSeeIt) {
  AttentionShape shape{2, 2, 16, 16, 0.25f};
  shape.cache.dtype = DType::kI8;
  const Sequence s = sequence(40, shape);
  const auto want = run({s}, shape, 40, 1)[0];
  for (const bool key : {false, true}) {
    Sequence spoilt = s;
    (key ? spoilt.k : spoilt.v)[20 * 32] = key ? NAN : INFINITY;  // token 20, head 0
    const auto got = run({spoilt}, shape, 40, 1)[0];
    EXPECT_EQ(0, std::memcmp(got.data(), want.data(), 20 * 32 * sizeof(float)));
    for (int64_t t = 20; t < 40; ++t) {
      EXPECT_TRUE(std::isnan(got[t * 32])) << t;
      EXPECT_EQ(got[t * 32 + 16], want[t * 32 + 16]) << "the other head";
    }
  }
}

}  // namespace
}  // namespace moracle::attend_test
