// Append and attend on every device: values match a softmax in double, and bits depend only on a
// token's own sequence.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "kernels/kernel_device.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/paged.h"

namespace moracle::attend_ops_test {
namespace {

using testing::PagedCaches;
using testing::rounded_to;

constexpr double kU = 0x1p-24;

struct Sequence {
  int64_t position, num_tokens;
};
/// Queries and new rows of one step, and the content of the caches before it.
struct Step {
  std::vector<PagedCaches::Tokens> tokens;
  std::vector<int64_t> capacities;
  std::vector<float> q, k, v;
  std::vector<std::vector<float>> keys, values;  ///< of the positions before each sequence's tokens
  int64_t count = 0;
};
/// Sizes of the rows of a token.
struct RowSizes {
  explicit RowSizes(const AttentionShape& shape)
      : q(shape.num_heads * shape.head_dim),
        k(shape.num_kv_heads * shape.head_dim),
        v(shape.num_kv_heads * shape.value_dim),
        out(shape.num_heads * shape.value_dim) {}
  int64_t q, k, v, out;
};

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t value_dim) {
  return {heads, kv_heads, head_dim, value_dim, 1 / std::sqrt(static_cast<float>(head_dim))};
}
AttentionShape with_window(AttentionShape shape, int64_t window) {
  shape.window = window;
  return shape;
}

class Attend : public testing::DeviceOpsTest {
 protected:
  Step draw(const AttentionShape& shape, const std::vector<Sequence>& sequences, float size = 1) {
    const RowSizes rows(shape);
    Step step;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& [position, count] = sequences[s];
      step.tokens.push_back({s, position, count});
      step.capacities.push_back(position + count);
      step.keys.push_back(normal(position * rows.k));
      step.values.push_back(normal(position * rows.v));
      step.count += count;
    }
    step.q = normal(step.count * rows.q, size);
    step.k = normal(step.count * rows.k);
    step.v = normal(step.count * rows.v);
    return step;
  }

  /// The caches before the step. Positions that no token sees hold NaN on a CPU. A GPU reads whole
  /// tiles, so there every position before the tokens holds numbers.
  static PagedCaches caches_before(const AttentionShape& shape, const Step& step, DType dtype,
                                   int64_t page, bool cpu) {
    const RowSizes rows(shape);
    PagedCaches caches(step.capacities, rows.k, rows.v, dtype, page, shape.num_kv_heads);
    for (size_t s = 0; s < step.keys.size(); ++s) {
      const int64_t position = step.tokens[s].position;
      for (int64_t i = cpu ? view_begin(shape, position) : 0; i < position; ++i) {
        caches.set(caches.key(s, i), &step.keys[s][i * rows.k], rows.k);
        caches.set(caches.value(s, i), &step.values[s][i * rows.v], rows.v);
      }
    }
    return caches;
  }
  static int64_t view_begin(const AttentionShape& shape, int64_t position) {
    const int64_t of_window =
        shape.window > 0 ? std::max<int64_t>(0, position + 1 - shape.window) : 0;
    return shape.chunk > 0 ? std::max(of_window, position / shape.chunk * shape.chunk) : of_window;
  }

  struct AfterStep {
    std::vector<float> out;
    PagedCaches caches;  // on the host
  };
  /// Runs the step on the device under test with a cache of `cache`.
  AfterStep run(AttentionShape shape, const Step& step, DType cache) {
    const RowSizes rows(shape);
    PagedCaches caches = caches_before(
        shape, step, cache, std::min<int64_t>(256, cache_page(device_->platform())), is_cpu());
    caches.upload(*device_);
    const Batch& batch = caches.batch_there(step.tokens, *device_);
    if (shape.sinks != nullptr) shape.sinks = upload(sinks_);
    shape.cache = caches.layer();
    shape.cache.key_scale = key_scale_, shape.cache.value_scale = value_scale_;
    const Matrix out = blank(step.count, rows.out);
    expect_done(ops().append(matrix(step.k, step.count, rows.k), matrix(step.v, step.count, rows.v),
                             batch, shape.cache, {}));
    expect_done(ops().attend(matrix(step.q, step.count, rows.q), batch, shape, out,
                             allocate(attend_scratch_bytes(shape, step.count, dtype())), {}));
    std::vector<float> got = floats(out);
    caches.download(*device_);
    return {std::move(got), std::move(caches)};
  }
  std::vector<float> bits_of(const AttentionShape& shape, const Step& step, DType cache) {
    return run(shape, step, cache).out;
  }

  /// Compares a step with a softmax in double. Wide models are compared at their outer heads.
  void check(const AttentionShape& shape, const std::vector<Sequence>& sequences, float size = 1) {
    check(shape, draw(shape, sequences, size));
  }
  void check(const AttentionShape& shape, const Step& step) {
    AfterStep got = run(shape, step, dtype());
    expect_appended(shape, step, got.caches);
    if (is_cpu())
      expect_softmax(shape, step, got);
    else
      expect_near_cpu(shape, step, got.out);
  }

  static void expect_appended(const AttentionShape& shape, const Step& step, PagedCaches& caches) {
    const RowSizes rows(shape);
    int64_t token = 0;
    for (const auto& [s, position, count] : step.tokens) {
      for (int64_t t = 0; t < count; ++t, ++token) {
        for (int64_t c = 0; c < rows.k; ++c)
          ASSERT_EQ(caches.get(caches.key(s, position + t), c), step.k[token * rows.k + c])
              << "the cache takes the new keys";
        for (int64_t c = 0; c < rows.v; ++c)
          ASSERT_EQ(caches.get(caches.value(s, position + t), c), step.v[token * rows.v + c])
              << "the cache takes the new values";
      }
    }
  }

  void expect_softmax(const AttentionShape& shape, const Step& step, AfterStep& got) const {
    const RowSizes rows(shape);
    int64_t token = 0;
    for (const auto& [s, first, count] : step.tokens) {
      for (int64_t position = first; position < first + count; ++position, ++token) {
        for (int64_t head = 0; head < shape.num_heads; ++head) {
          if (head == 2 && shape.num_heads > 8) head = shape.num_heads - 2;
          const float* const query = &step.q[token * rows.q + head * shape.head_dim];
          const float* const out = &got.out[token * rows.out + head * shape.value_dim];
          expect_softmax_of_head(shape, got.caches, s, position, head, query, out);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  void expect_softmax_of_head(const AttentionShape& shape, PagedCaches& caches, size_t s,
                              int64_t position, int64_t head, const float* query,
                              const float* out) const {
    const int64_t begin = view_begin(shape, position),
                  kv = head / (shape.num_heads / shape.num_kv_heads);
    std::vector<double> scores(position + 1 - begin);
    double largest = shape.sinks != nullptr ? sinks_[head] : -INFINITY, doubt = 0;
    for (int64_t i = begin; i <= position; ++i) {
      double magnitude = 0;
      const std::byte* const key = caches.key(s, i);
      for (int64_t d = 0; d < shape.head_dim; ++d) {
        const double product = double{query[d]} * caches.get(key, kv * shape.head_dim + d);
        scores[i - begin] += product * shape.scale;
        magnitude += std::fabs(product * shape.scale);
      }
      largest = std::max(largest, scores[i - begin]);
      doubt = std::max(doubt, static_cast<double>(shape.head_dim + 4) * kU * magnitude);
    }
    double sum = shape.sinks != nullptr ? std::exp(sinks_[head] - largest) : 0;
    for (double& score : scores) sum += score = std::exp(score - largest);
    std::vector<double> want(shape.value_dim), magnitude(shape.value_dim);
    for (int64_t i = begin; i <= position; ++i) {
      const std::byte* const value = caches.value(s, i);
      for (int64_t d = 0; d < shape.value_dim; ++d) {
        const double term = scores[i - begin] / sum * caches.get(value, kv * shape.value_dim + d);
        want[d] += term;
        magnitude[d] += std::fabs(term);
      }
    }
    for (int64_t d = 0; d < shape.value_dim; ++d) {
      // Each weight is off by a factor of exp(doubt) above and below the fraction line, and the
      // sums round.
      const double bound = (4 * doubt + static_cast<double>(position + 40) * kU * 2) * magnitude[d];
      ASSERT_NEAR(out[d], want[d], bound)
          << "sequence " << s << " position " << position << " head " << head;
    }
  }

  /// Compares with f32 attention on the CPU, which the same test compares with a softmax in double.
  void expect_near_cpu(AttentionShape shape, const Step& step, const std::vector<float>& got) {
    const RowSizes rows(shape);
    const std::shared_ptr<Device> cpu = *open_device("cpu", 2);
    PagedCaches caches = caches_before(shape, step, DType::kF32, 256, true);
    caches.upload(*cpu);
    const Batch& batch = caches.batch_there(step.tokens, *cpu);
    if (shape.sinks != nullptr) shape.sinks = sinks_.data();
    shape.cache = caches.layer();
    std::vector<float> q = step.q, k = step.k, v = step.v, want(step.count * rows.out);
    expect_done(kernel_device(*cpu).ops().append(Matrix::f32(k.data(), step.count, rows.k),
                                                 Matrix::f32(v.data(), step.count, rows.v), batch,
                                                 shape.cache, {}));
    expect_done(kernel_device(*cpu).ops().attend(
        Matrix::f32(q.data(), step.count, rows.q), batch, shape,
        Matrix::f32(want.data(), step.count, rows.out), nullptr, {}));
    ASSERT_EQ(got.size(), want.size());
    double off = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      off += std::pow(double{got[i]} - want[i], 2), size += std::pow(double{want[i]}, 2);
      // The result is rounded to bf16, and the weights before it. Values are about 1.
      ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-7f + 0x1p-7f) << i;
    }
    EXPECT_LT(std::sqrt(off / size), 5e-3);
  }

  float key_scale_ = 1, value_scale_ = 1;  // of an e4m3 cache
  // The first four: far below every score, among the scores, and so far above that scores do not
  // matter.
  std::vector<float> sinks_ = [] {
    std::mt19937 random(7);
    std::vector<float> sinks = testing::normal_floats(random, 64, 2);
    sinks[0] = -40, sinks[1] = 0.5f, sinks[2] = 3, sinks[3] = 30;
    return sinks;
  }();
};

TEST_P(Attend, IsCausal) {
  check({2, 2, 8, 8, 0.35f}, {{0, 9}});
}

TEST_P(Attend, SharesKeysBetweenGroupedHeads) {
  check({8, 2, 16, 16, 0.25f}, {{0, 5}});
  check({6, 1, 20, 20, 0.22f}, {{3, 2}});
}

TEST_P(Attend, ContinuesFromTheCache) {
  check({4, 2, 16, 16, 0.25f}, {{37, 1}});
  check({4, 2, 16, 16, 0.25f}, {{20, 6}});
}

TEST_P(Attend, SeparatesSequencesOfBatch) {
  check({4, 2, 16, 16, 0.25f}, {{0, 3}, {50, 1}, {0, 1}, {7, 4}});
}

// A CPU processes keys in blocks of 64: covers lengths at, before and after the edges, and several
// blocks.
TEST_P(Attend, MatchesSoftmaxOverLongContext) {
  for (int64_t position : {62, 63, 64, 127, 128, 300})
    check({2, 1, 16, 16, 0.25f}, {{position, 2}});
  // Large scores: the maximum moves from block to block.
  check({2, 1, 16, 16, 0.25f}, {{250, 3}}, 12);
  check({2, 2, 13, 13, 0.3f}, {{0, 130}});
}

// A GPU splits long contexts (split-KV). A CPU splits them only over threads: the first lengths
// suffice there.
TEST_P(Attend, MatchesSoftmaxOverSplitContext) {
  for (const int64_t position : {4095, 4096, 8191, 20'000}) {
    if (is_cpu() && position > 4096) break;
    SCOPED_TRACE(str("position ", position));
    check(shape_of(32, 4, 128, 128), {{position, 1}, {position / 2, 1}});
    check(shape_of(8, 8, 64, 64), {{position, 1}, {position / 2, 1}});
  }
}

TEST_P(Attend, AcceptsValuesAndKeysOfDifferentSize) {
  check({4, 2, 24, 16, 0.2f}, {{0, 7}, {70, 2}});
  check({3, 3, 6, 20, 0.4f}, {{5, 4}});
}

TEST_P(Attend, SeesOnlyPositionsInWindow) {
  for (int64_t window : {1, 2, 5, 64, 65, 1000}) {
    SCOPED_TRACE(str("window ", window));
    check(with_window({4, 2, 16, 16, 0.25f}, window),
          {{0, 9}, {200, 3}, {window - 1, 2}, {window, 1}});
  }
}

// Steps that begin at, end at and cross the edges of chunks.
TEST_P(Attend, SeesOnlyPositionsInChunk) {
  for (int64_t chunk : {1, 2, 5, 64, 65, 1000}) {
    for (int64_t window : {int64_t{0}, int64_t{40}}) {
      SCOPED_TRACE(str("chunk ", chunk, ", window ", window));
      AttentionShape shape = with_window({4, 2, 16, 16, 0.25f}, window);
      shape.chunk = chunk;
      check(shape, {{0, 9}, {200, 3}, {chunk - 1, 2}, {chunk, 1}, {2 * chunk - 1, 1}, {60, 70}});
    }
  }
}

TEST_P(Attend, CountsSinksInTheDenominatorOnly) {
  AttentionShape shape{4, 2, 16, 12, 0.25f};
  shape.sinks = sinks_.data();
  check(shape, {{0, 5}, {130, 2}}, 3);
  check(with_window(shape, 4), {{0, 9}, {130, 2}}, 3);
}

// Ends of tiles and pages, with 1, 2 to 4, and more tokens of new and long sequences.
TEST_P(Attend, AppliesMaskOfEachToken) {
  const std::vector<Sequence> sequences = {{391, 5}, {0, 1},    {0, 70}, {63, 1},
                                           {64, 2},  {1000, 1}, {31, 4}, {95, 33}};
  const AttentionShape shapes[] = {shape_of(4, 2, 24, 40),     // no tensor cores on a GPU
                                   shape_of(32, 4, 128, 128),  // rows of a tile without a head
                                   shape_of(40, 2, 64, 64),    // more heads than rows of a tile
                                   shape_of(3, 3, 192, 128),  shape_of(32, 2, 128, 128),
                                   shape_of(4, 4, 64, 64)};
  const struct {
    const char* name;
    int64_t window;
    bool sinks;
    int64_t chunk = 0;
  } masks[] = {{"causal", 0, false},
               {"window of 150", 150, false},
               {"chunks of 97", 0, false, 97},
               {"chunks of 192", 0, false, 192},
               {"sinks", 0, true},
               {"window of 150 and sinks", 150, true}};
  for (const AttentionShape& plain : shapes) {
    const Step step = draw(plain, sequences);
    for (const auto& mask : masks) {
      AttentionShape shape = with_window(plain, mask.window);
      if (mask.sinks) shape.sinks = sinks_.data();
      shape.chunk = mask.chunk;
      SCOPED_TRACE(str(plain.num_heads, " heads of ", plain.head_dim, ", ", mask.name));
      check(shape, step);
      if (is_cpu()) continue;  // a CPU's attention is always batch-invariant
      SCOPED_TRACE("batch-invariant");
      shape.batch_invariant = true;
      check(shape, step);
    }
  }
}

TEST_P(Attend, SingleTokenOutputEqualsItsValue) {
  const AttentionShape shape{1, 1, 8, 8, 0.35f};
  const Step step = draw(shape, {{0, 1}});
  EXPECT_EQ(bits_of(shape, step, dtype()), step.v);
}

// Other sequences, longer sequences, and sequences with many tokens share the step.
TEST_P(Attend, TokenBitsDependOnlyOnItsSequence) {
  for (const bool batch_invariant : {false, true}) {
    if (!batch_invariant && !is_cpu()) continue;  // the tokens of a step share the GPU
    SCOPED_TRACE(batch_invariant ? "batch-invariant" : "any order of sums");
    AttentionShape shape = shape_of(16, 2, 128, 128);
    shape.batch_invariant = batch_invariant;
    const RowSizes rows(shape);
    const Step many = draw(shape, {{700, 1}, {5000, 1}, {100, 60}, {0, 1}});
    Step one = many;
    one.tokens.resize(1), one.capacities.resize(1), one.keys.resize(1), one.values.resize(1);
    one.q.resize(rows.q), one.k.resize(rows.k), one.v.resize(rows.v);
    one.count = 1;
    const std::vector<float> together = bits_of(shape, many, dtype()),
                             by_itself = bits_of(shape, one, dtype());
    EXPECT_TRUE(std::equal(by_itself.begin(), by_itself.end(), together.begin()));
  }
}

TEST_P(Attend, BatchInvariantBitsDoNotDependOnStep) {
  AttentionShape shape = shape_of(8, 2, 64, 64);
  shape.batch_invariant = true;
  const RowSizes rows(shape);
  const Step whole = draw(shape, {{100, 30}});
  const std::vector<float> together = bits_of(shape, whole, dtype());
  Step last = whole;  // its last token, the others cached already
  last.tokens = {{0, 129, 1}};
  last.keys[0].insert(last.keys[0].end(), whole.k.begin(), whole.k.end() - rows.k);
  last.values[0].insert(last.values[0].end(), whole.v.begin(), whole.v.end() - rows.v);
  last.q.erase(last.q.begin(), last.q.end() - rows.q);
  last.k.erase(last.k.begin(), last.k.end() - rows.k);
  last.v.erase(last.v.begin(), last.v.end() - rows.v);
  last.count = 1;
  const std::vector<float> by_itself = bits_of(shape, last, dtype());
  EXPECT_TRUE(std::equal(by_itself.begin(), by_itself.end(), together.end() - rows.out));
}

// Keys and values are rounded once and read exactly. So attention over a cache of 16 or 8 bits has
// the bits of attention over rounded numbers in an f32 cache.
TEST_P(Attend, ReadsNarrowFloatsExactly) {
  for (const AttentionShape& shape : {with_window({8, 2, 32, 32, 0.2f}, 100),
                                      {3, 3, 20, 13, 0.25f},
                                      {70, 1, 8, 8, 0.3f},
                                      shape_of(8, 2, 64, 64),
                                      shape_of(8, 1, 128, 128),
                                      shape_of(2, 2, 192, 128)}) {
    const Step exact = draw(shape, {{300, 1}, {500, 40}, {0, 9}});
    for (const DType cache : {DType::kBF16, DType::kF16, DType::kF8E4M3}) {
      // Models refuse an e4m3 cache on OpenCL. A GPU may add columns in another order: see the next
      // test.
      if (cache == DType::kF8E4M3 && !is_cpu()) continue;
      Step once = exact;
      once.k = rounded_to(cache, std::move(once.k));
      once.v = rounded_to(cache, std::move(once.v));
      for (std::vector<float>& keys : once.keys) keys = rounded_to(cache, std::move(keys));
      for (std::vector<float>& values : once.values) values = rounded_to(cache, std::move(values));
      EXPECT_EQ(bits_of(shape, exact, cache), bits_of(shape, once, DType::kF32))
          << name(cache) << ", heads of " << shape.head_dim;
    }
  }
}

// A decode step over many pages, with and without tensor cores on a GPU, and every number of heads
// per KV head that has its own kernel. decode_sm90 adds the columns of a score in another order, so
// a result may be rounded to the adjacent bf16.
TEST_P(Attend, DecodeReadsLongE4m3CacheExactly) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "models refuse it there";
  const auto narrow = [](std::vector<float> values) {
    return rounded_to(DType::kF8E4M3, std::move(values));
  };
  for (const AttentionShape& shape : {shape_of(4, 4, 128, 128), shape_of(8, 1, 128, 128),
                                      shape_of(16, 1, 64, 64), shape_of(2, 1, 192, 128)}) {
    for (const bool batch_invariant : {false, true}) {
      SCOPED_TRACE(str(shape.num_heads, " heads of ", shape.head_dim));
      AttentionShape one = shape;
      one.batch_invariant = batch_invariant;
      const Step exact = draw(one, {{is_cpu() ? 1000 : 9000, 1}, {129, 3}, {63, 1}, {200, 90}});
      Step once = exact;
      once.k = narrow(std::move(once.k)), once.v = narrow(std::move(once.v));
      for (std::vector<float>& keys : once.keys) keys = narrow(std::move(keys));
      for (std::vector<float>& values : once.values) values = narrow(std::move(values));
      const std::vector<float> got = bits_of(one, exact, DType::kF8E4M3),
                               want = bits_of(one, once, DType::kF32);
      if (is_cpu()) {
        EXPECT_EQ(got, want);
        continue;
      }
      double off = 0, size = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-7f + 0x1p-12f) << i;
        off += std::pow(double{got[i]} - want[i], 2), size += std::pow(double{want[i]}, 2);
      }
      EXPECT_LT(std::sqrt(off / size), 1e-3);
    }
  }
}

// With scales that are powers of two, the codes and all sums are those of keys and values divided
// by them: only the exponents of scores and outputs differ.
TEST_P(Attend, ScalesE4m3KeysAndValues) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "models refuse it there";
  const auto times = [](std::vector<float> values, float factor) {
    for (float& value : values) value *= factor;
    return values;
  };
  for (AttentionShape shape : {with_window({8, 2, 32, 32, 0.2f}, 100),
                               {3, 3, 20, 13, 0.25f},
                               shape_of(8, 2, 64, 64),
                               shape_of(8, 1, 128, 128),
                               shape_of(2, 2, 192, 128)}) {
    for (const bool sinks : {false, true}) {
      shape.sinks = sinks ? sinks_.data() : nullptr;
      SCOPED_TRACE(str(shape.num_heads, " heads of ", shape.head_dim));
      const Step codes = draw(shape, {{300, 1}, {500, 40}, {0, 9}});
      Step scaled = codes;
      scaled.k = times(codes.k, 0.125f), scaled.v = times(codes.v, 4);
      AttentionShape of_codes = shape;
      of_codes.scale *= 0.125f;
      const std::vector<float> want = times(bits_of(of_codes, codes, DType::kF8E4M3), 4);
      key_scale_ = 0.125f, value_scale_ = 4;
      EXPECT_EQ(bits_of(shape, scaled, DType::kF8E4M3), want);
      key_scale_ = value_scale_ = 1;
    }
  }
}

// Prompts with more pages than the ring in shared memory has slots, and a window that begins
// inside.
TEST_P(Attend, PrefillReadsLongNarrowCacheExactly) {
  for (const DType cache : {DType::kF8E4M3, DType::kF16}) {
    // Models refuse an e4m3 cache on OpenCL.
    if (cache == DType::kF8E4M3 && device_->platform() == Platform::kOpenCl) continue;
    const auto narrow = [&](std::vector<float> values) {
      return rounded_to(cache, std::move(values));
    };
    for (const AttentionShape& shape :
         {shape_of(8, 1, 128, 128), shape_of(4, 2, 64, 64), shape_of(2, 1, 192, 128),
          with_window(shape_of(4, 1, 128, 128), 333)}) {
      const Step exact = draw(shape, {{1200, 70}, {0, 150}, {577, 5}});
      Step once = exact;
      once.k = narrow(std::move(once.k)), once.v = narrow(std::move(once.v));
      for (std::vector<float>& keys : once.keys) keys = narrow(std::move(keys));
      for (std::vector<float>& values : once.values) values = narrow(std::move(values));
      EXPECT_EQ(bits_of(shape, exact, cache), bits_of(shape, once, DType::kF32))
          << name(cache) << ", " << shape.num_heads << " heads of " << shape.head_dim;
    }
  }
}

// More tiles of queries than a GPU has SMs: persistent CTAs take several tiles, of two sequences.
TEST_P(Attend, MatchesSoftmaxIfBlocksTakeSeveralTiles) {
  if (is_cpu()) GTEST_SKIP() << "a CPU has no persistent CTAs";
  check(shape_of(16, 4, 128, 128), {{0, 900}, {64, 700}});
  check(with_window(shape_of(16, 4, 64, 64), 200), {{0, 900}, {64, 3}, {64, 700}});
}

TEST_P(Attend, E4m3CacheSaturatesAndKeepsNan) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "models refuse it there";
  const auto kept = [&](float value) {
    Step step;
    step.tokens = {{0, 0, 1}}, step.capacities = {1}, step.keys = step.values = {{}};
    step.q = step.k = std::vector<float>(64, 1), step.v = std::vector<float>(64, value);
    step.count = 1;
    return bits_of(shape_of(1, 1, 64, 64), step, DType::kF8E4M3)[0];
  };
  EXPECT_EQ(kept(416), 416);
  EXPECT_EQ(kept(-60000), -448);
  EXPECT_EQ(kept(INFINITY), 448);
  EXPECT_EQ(kept(0x1p-9f), 0x1p-9f);
  EXPECT_EQ(kept(0x1p-11f), 0);
  EXPECT_TRUE(std::isnan(kept(NAN)));
}

TEST_P(Attend, F16CacheRejectsOverflowAndKeepsInfinity) {
  // A GPU reports the overflow at synchronize().
  const auto append = [&](float value, DType cache) -> Status {
    PagedCaches caches({1}, 8, 8, cache, std::min<int64_t>(256, cache_page(device_->platform())));
    caches.upload(*device_);
    const Status done = ops().append(matrix(std::vector<float>(8, 1), 1, 8),
                                     matrix(std::vector<float>(8, value), 1, 8),
                                     caches.batch_there({{0, 0, 1}}, *device_), caches.layer(), {});
    const Status told = device_->synchronize();
    return done ? told : done;
  };
  expect_done(append(65280, DType::kF16));
  const Status refused = append(-65536, DType::kF16);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "kv cache");
  EXPECT_THAT(refused.error().fact, ::testing::HasSubstr("-65536"));
  expect_done(append(1e30f, DType::kBF16));
  expect_done(append(INFINITY, DType::kF16));
  expect_done(append(NAN, DType::kF16));
  if (dtype() != DType::kF32) return;  // bf16 has no number near the limit
  expect_done(append(65504, DType::kF16));
  expect_done(append(65519, DType::kF16));  // rounds to 65504
  EXPECT_FALSE(append(-65520, DType::kF16));
}

MORACLE_ON_EVERY_DEVICE(Attend);

}  // namespace
}  // namespace moracle::attend_ops_test
