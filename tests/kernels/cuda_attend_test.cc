// Compares every variant of attention on a GPU with f32 attention on the CPU on the same values.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/text.h"
#include "kernels/cuda_test.h"
#include "kernels/paged.h"

namespace moracle::cuda_attend_test {
namespace {

using testing::PagedCaches;

class CudaAttendTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    cpu_ = *open_device("cpu", 2);
  }
  std::vector<float> normal(int64_t count, float size = 1) {
    std::normal_distribution<float> distribution(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = distribution(random_);
    return rounded_to_bf16(std::move(values));
  }

  struct Sequence {
    int64_t position, count;
  };
  /// Appended rows and queries of a step, and the cache contents before it.
  struct Step {
    std::vector<PagedCaches::Tokens> tokens;
    std::vector<int64_t> capacities;
    std::vector<float> q, k, v;
    std::vector<std::vector<float>> keys, values;  // of each sequence's positions before
    int64_t count = 0;
  };
  Step draw(const AttentionShape& shape, const std::vector<Sequence>& sequences) {
    Step step;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& [position, count] = sequences[s];
      step.tokens.push_back({s, position, count});
      step.capacities.push_back(position + count);
      step.keys.push_back(normal(position * shape.num_kv_heads * shape.head_dim));
      step.values.push_back(normal(position * shape.num_kv_heads * shape.value_dim));
      step.count += count;
    }
    step.q = normal(step.count * shape.num_heads * shape.head_dim);
    step.k = normal(step.count * shape.num_kv_heads * shape.head_dim);
    step.v = normal(step.count * shape.num_kv_heads * shape.value_dim);
    return step;
  }
  static PagedCaches caches(const AttentionShape& shape, const Step& step, DType dtype,
                            int64_t page) {
    const int64_t key_row = shape.num_kv_heads * shape.head_dim,
                  value_row = shape.num_kv_heads * shape.value_dim;
    PagedCaches caches(step.capacities, key_row, value_row, dtype, page);
    for (size_t s = 0; s < step.keys.size(); ++s) {
      for (int64_t i = 0; i < step.tokens[s].position; ++i) {
        caches.set(caches.key(s, i), &step.keys[s][i * key_row], key_row);
        caches.set(caches.value(s, i), &step.values[s][i * value_row], value_row);
      }
    }
    return caches;
  }
  std::vector<float> on_cpu(AttentionShape shape, Step step) {
    PagedCaches there = caches(shape, step, DType::kF32, 256);
    const Batch& batch = there.batch(step.tokens, *cpu_);
    std::vector<float> out(step.count * shape.num_heads * shape.value_dim);
    const auto view = [&](std::vector<float>& of) {
      return Matrix::f32(of.data(), step.count, static_cast<int64_t>(of.size()) / step.count);
    };
    shape.cache = there.layer();
    expect_done(cpu_->ops().append(view(step.k), view(step.v), batch, shape.cache, {}));
    expect_done(cpu_->ops().attend(view(step.q), batch, shape, view(out), nullptr, {}));
    return out;
  }
  std::vector<uint16_t> on_gpu(AttentionShape shape, const Step& step, DType dtype) {
    PagedCaches there = caches(shape, step, dtype, device_->ops().cache_page());
    there.upload(*device_);
    const Buffer q = upload(to_bf16(step.q)), k = upload(to_bf16(step.k)),
                 v = upload(to_bf16(step.v)),
                 out = allocate(step.count * shape.num_heads * shape.value_dim * 2),
                 sinks = upload(sinks_),
                 room = allocate(attend_scratch_bytes(shape, step.count, DType::kBF16));
    const auto view = [&](const Buffer& of) {
      return bf16_matrix(of, step.count, static_cast<int64_t>(of.bytes()) / 2 / step.count);
    };
    const Batch& batch = there.batch_there(step.tokens, *device_);
    if (shape.sinks != nullptr) shape.sinks = sinks.as<float>();
    shape.cache = there.layer();
    expect_done(device_->ops().append(view(k), view(v), batch, shape.cache, {}));
    expect_done(device_->ops().attend(view(q), batch, shape, view(out), room.as<std::byte>(), {}));
    return download<uint16_t>(out);
  }
  void expect_near(const AttentionShape& shape, const Step& step,
                   const std::vector<uint16_t>& got_bits) {
    const std::vector<float> want = on_cpu(shape, step), got = from_bf16(got_bits);
    ASSERT_EQ(got.size(), want.size());
    double off = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      off += std::pow(double{got[i]} - want[i], 2), size += std::pow(double{want[i]}, 2);
      // The result is rounded to bf16, and the weights before it. Values are about 1.
      ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-7f + 0x1p-7f) << i;
    }
    EXPECT_LT(std::sqrt(off / size), 5e-3);
  }

  std::shared_ptr<Device> cpu_;
  std::mt19937 random_{7};
  std::vector<float> sinks_ = normal(64, 2);
};

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t value_dim) {
  return {heads, kv_heads, head_dim, value_dim, 1 / std::sqrt(static_cast<float>(head_dim))};
}

TEST_F(CudaAttendTest, AppliesMaskOfEachToken) {
  std::vector<AttentionShape> shapes = {
      shape_of(4, 2, 24, 40),     // no tensor cores
      shape_of(32, 4, 128, 128),  // rows of a tile that are no head's
      shape_of(40, 2, 64, 64),    // more heads than a tile has rows
      shape_of(3, 3, 192, 128),  shape_of(32, 2, 128, 128), shape_of(4, 4, 64, 64)};
  for (const AttentionShape& plain : shapes) {
    for (const int64_t window : {0, 150}) {
      for (const bool sunk : {false, true}) {
        for (const bool batch_invariant : {false, true}) {
          SCOPED_TRACE(str(plain.num_heads, " heads of ", plain.head_dim, ", window ", window,
                           sunk ? ", sinks" : "", batch_invariant ? ", alone" : ""));
          AttentionShape shape = plain;
          shape.window = window;
          shape.batch_invariant = batch_invariant;
          if (sunk) shape.sinks = sinks_.data();
          // Covers ends of tiles and pages, and one, few and many tokens of new and long sequences.
          const Step step = draw(
              shape, {{391, 5}, {0, 1}, {0, 70}, {63, 1}, {64, 2}, {1000, 1}, {31, 4}, {95, 33}});
          expect_near(shape, step, on_gpu(shape, step, DType::kBF16));
        }
      }
    }
  }
}

// Queries and appended rows are bf16, so all three cache types hold the same values.
TEST_F(CudaAttendTest, EveryCacheTypeGivesSameBits) {
  for (const AttentionShape& shape :
       {shape_of(8, 2, 64, 64), shape_of(8, 1, 128, 128), shape_of(2, 2, 192, 128)}) {
    const Step step = draw(shape, {{300, 1}, {500, 40}, {0, 9}});
    const std::vector<uint16_t> want = on_gpu(shape, step, DType::kBF16);
    EXPECT_EQ(on_gpu(shape, step, DType::kF32), want);
    EXPECT_EQ(on_gpu(shape, step, DType::kF16), want);
  }
}

TEST_F(CudaAttendTest, SplitsLongContextIntoEqualParts) {
  for (const int64_t position : {4095, 4096, 8191, 20'000}) {
    for (const AttentionShape& shape : {shape_of(32, 4, 128, 128), shape_of(8, 8, 64, 64)}) {
      const Step step = draw(shape, {{position, 1}, {position / 2, 1}});
      expect_near(shape, step, on_gpu(shape, step, DType::kBF16));
    }
  }
}

// Varies the rest of the batch: other sequences, longer sequences, many tokens, more own tokens.
TEST_F(CudaAttendTest, TokenBitsDependOnlyOnItsSequence) {
  for (const bool batch_invariant : {false, true}) {
    AttentionShape shape = shape_of(16, 2, 128, 128);
    shape.batch_invariant = batch_invariant;
    const int64_t row = 16 * 128;
    Step many = draw(shape, {{700, 1}, {5000, 1}, {100, 60}, {0, 1}});
    Step one = many;
    one.tokens.resize(1), one.capacities.resize(1), one.keys.resize(1), one.values.resize(1);
    one.q.resize(row), one.k.resize(2 * 128), one.v.resize(2 * 128);
    one.count = 1;
    const auto together = on_gpu(shape, many, DType::kBF16),
               by_itself = on_gpu(shape, one, DType::kBF16);
    EXPECT_TRUE(std::equal(by_itself.begin(), by_itself.end(), together.begin()))
        << batch_invariant;
  }
}

TEST_F(CudaAttendTest, BatchInvariantBitsDoNotDependOnStep) {
  AttentionShape shape = shape_of(8, 2, 64, 64);
  shape.batch_invariant = true;
  const Step whole = draw(shape, {{100, 30}});
  const auto together = on_gpu(shape, whole, DType::kBF16);
  Step last = whole;  // its last token, the others cached already
  const int64_t kv_row = 2 * 64, q_row = 8 * 64;
  last.tokens = {{0, 129, 1}};
  last.keys[0].insert(last.keys[0].end(), whole.k.begin(), whole.k.end() - kv_row);
  last.values[0].insert(last.values[0].end(), whole.v.begin(), whole.v.end() - kv_row);
  last.q.erase(last.q.begin(), last.q.end() - q_row);
  last.k.erase(last.k.begin(), last.k.end() - kv_row);
  last.v.erase(last.v.begin(), last.v.end() - kv_row);
  last.count = 1;
  const auto by_itself = on_gpu(shape, last, DType::kBF16);
  EXPECT_TRUE(std::equal(by_itself.begin(), by_itself.end(), together.end() - q_row));
}

TEST_F(CudaAttendTest, ReportsF16Overflow) {
  PagedCaches there({1}, 8, 8, DType::kF16, 64);
  there.upload(*device_);
  const auto append = [&](float value) {
    const Buffer k = upload(to_bf16(std::vector<float>(8, 1))),
                 v = upload(to_bf16(std::vector<float>(8, value)));
    expect_done(device_->ops().append(bf16_matrix(k, 1, 8), bf16_matrix(v, 1, 8),
                                      there.batch_there({{0, 0, 1}}, *device_), there.layer(), {}));
    return device_->synchronize();
  };
  expect_done(append(65280));
  const Status refused = append(-65536);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().place, "kv cache");
  EXPECT_EQ(refused.error().fact, "one is -65536");
  expect_done(append(INFINITY));
}

// Compares the fused kernel (norms, rotation, append) with the separate kernels.
TEST_F(CudaAttendTest, TurnAndAppendMatchesSeparateKernels) {
  const int64_t heads = 6, kv_heads = 2, tokens = 7;
  for (const int64_t dim : {20, 64, 128}) {
    for (const bool normed : {false, true}) {
      for (const bool interleaved : {false, true}) {
        SCOPED_TRACE(str(dim, normed ? ", norms" : "", interleaved ? ", interleaved" : ""));
        const int64_t cols = (heads + 2 * kv_heads) * dim;
        std::vector<float> qkv = normal(tokens * cols), q_norm = normal(dim), k_norm = normal(dim);
        std::vector<float> frequencies(dim / 2);
        for (size_t i = 0; i < frequencies.size(); ++i)
          frequencies[i] = std::pow(0.7f, static_cast<float>(i));
        const Buffer x = upload(to_bf16(qkv)), dq = upload(q_norm), dk = upload(k_norm),
                     df = upload(frequencies);
        QkNormRope turn{normed ? q_norm.data() : nullptr,
                        normed ? k_norm.data() : nullptr,
                        1e-6f,
                        {dim, dim / 2, 0, interleaved, 1.5f},
                        frequencies.data()};
        const auto part = [&](Matrix m, int64_t first, int64_t count) {
          m.data = static_cast<std::byte*>(m.data) + first * dim * bits(m.dtype) / 8;
          m.cols = count * dim;
          return m;
        };
        PagedCaches host({300, 90}, kv_heads * dim, kv_heads * dim, DType::kF32, 256),
            there({300, 90}, kv_heads * dim, kv_heads * dim, DType::kBF16, 64);
        there.upload(*device_);
        const std::vector<PagedCaches::Tokens> step = {{0, 295, 4}, {1, 62, 3}};
        const Matrix h = Matrix::f32(qkv.data(), tokens, cols), d = bf16_matrix(x, tokens, cols);
        expect_done(cpu_->ops().rope_and_append(part(h, 0, heads), part(h, heads, kv_heads),
                                                part(h, heads + kv_heads, kv_heads), turn,
                                                host.batch(step, *cpu_), host.layer(), {}));
        if (normed) turn.q_norm = dq.as<float>(), turn.k_norm = dk.as<float>();
        turn.frequencies = df.as<float>();
        expect_done(device_->ops().rope_and_append(
            part(d, 0, heads), part(d, heads, kv_heads), part(d, heads + kv_heads, kv_heads), turn,
            there.batch_there(step, *device_), there.layer(), {}));
        there.download(*device_);
        const auto got = from_bf16(download<uint16_t>(x));
        const auto close = [](float a, float b) {
          return std::fabs(a - b) <= std::fabs(b) * 0x1p-7f + 0.02f;
        };
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < heads * dim; ++c)
            ASSERT_TRUE(close(got[t * cols + c], qkv[t * cols + c])) << t << ", " << c;
        }
        for (const auto& one : step) {
          for (int64_t i = one.position; i < one.position + one.count; ++i) {
            for (int64_t c = 0; c < kv_heads * dim; ++c) {
              ASSERT_TRUE(close(there.get(there.key(one.sequence, i), c),
                                host.get(host.key(one.sequence, i), c)));
              ASSERT_EQ(there.get(there.value(one.sequence, i), c),
                        host.get(host.value(one.sequence, i), c));
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaAttendTest, AddRmsNormMatchesSeparateKernels) {
  for (const auto& [rows, cols] : {std::pair{5, 2048}, {3, 130}, {70, 256}, {2, 7168}}) {
    std::vector<float> x = normal(rows * cols), y = normal(rows * cols), weight = normal(cols),
                       out(rows * cols);
    const Buffer dx = upload(to_bf16(x)), dy = upload(to_bf16(y)), dw = upload(weight),
                 dout = allocate(rows * cols * 2);
    expect_done(device_->ops().add_rms_norm(bf16_matrix(dx, rows, cols),
                                            bf16_matrix(dy, rows, cols), dw.as<float>(), 1e-6f,
                                            bf16_matrix(dout, rows, cols), {}));
    // The sum is stored rounded.
    for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_float(float_to_bf16(x[i] + y[i]));
    expect_done(cpu_->ops().rms_norm(Matrix::f32(x.data(), rows, cols), weight.data(), cols, 1e-6f,
                                     Matrix::f32(out.data(), rows, cols), {}));
    EXPECT_EQ(from_bf16(download<uint16_t>(dx)), x);
    const auto got = from_bf16(download<uint16_t>(dout));
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(got[i], out[i], std::fabs(out[i]) * (0x1p-8f + 1e-5f) + 1e-30f) << i;
  }
}

}  // namespace
}  // namespace moracle::cuda_attend_test
