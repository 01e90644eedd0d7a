// Tests RoPE on every device against computation in double, alone and with norms and append.
#include "base/text.h"
#include "kernels/ops/device_ops.h"
#include "kernels/ops/paged.h"

namespace moracle::rope_test {
namespace {

constexpr double kU = 0x1p-24;

struct Rotated {
  double value, size;  ///< `size`: the magnitude of the numbers that enter the value
  bool rotates = true;
};

/// Column `column` of a head at `position` after RoPE.
Rotated rotated(const RotaryShape& shape, const std::vector<float>& frequencies, int32_t position,
                const double* head, int64_t column) {
  const int64_t at = column - shape.first;
  if (at < 0 || at >= 2 * shape.num_pairs) return {head[column], std::fabs(head[column]), false};
  const int64_t i = shape.interleaved ? at / 2 : at % shape.num_pairs;
  const bool is_first = shape.interleaved ? at % 2 == 0 : at < shape.num_pairs;
  const int64_t partner = shape.interleaved ? 1 : shape.num_pairs;
  // The angle is rounded to f32, as in model training; sine and cosine are not.
  const float angle = static_cast<float>(position) * frequencies[i];
  const double a = head[is_first ? column : column - partner];
  const double b = head[is_first ? column + partner : column];
  const double cosine = std::cos(double{angle}), sine = std::sin(double{angle});
  return {shape.factor * (is_first ? a * cosine - b * sine : b * cosine + a * sine),
          shape.factor * (std::fabs(a) + std::fabs(b))};
}

class Rope : public testing::DeviceOpsTest {
 protected:
  // Rotates `heads` heads and compares every column, in f32 and in the type of activations.
  void check(const RotaryShape& shape, int64_t heads, const std::vector<float>& frequencies,
             const std::vector<int32_t>& positions) {
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t cols = shape.head_dim * heads;
    const std::vector<float> x = normal(rows * cols);
    const std::vector<double> heads_of_rows(x.begin(), x.end());
    for (const DType type : {DType::kF32, dtype()}) {
      const Matrix got_matrix = matrix(x, rows, cols, type);
      expect_done(ops().rotate(got_matrix, shape, upload(frequencies), upload(positions), {}));
      const std::vector<float> got = floats(got_matrix);
      for (int64_t i = 0; i < rows * cols; ++i) {
        const int64_t column = i % shape.head_dim;
        const Rotated want =
            rotated(shape, frequencies, positions[i / cols], &heads_of_rows[i - column], column);
        if (!want.rotates) {
          ASSERT_EQ(got[i], x[i]) << "column " << column << " does not turn";
          continue;
        }
        const double rounding = type == DType::kF32 ? 0 : 0x1p-8 * std::fabs(want.value);
        ASSERT_NEAR(got[i], want.value, f32_bound(want.size, 8 * kU * want.size) + rounding)
            << "position " << positions[i / cols] << " column " << column;
      }
    }
  }
  void check(const RotaryShape& shape, int64_t heads) {
    std::vector<float> frequencies(shape.num_pairs);
    for (size_t i = 0; i < frequencies.size(); ++i) {
      frequencies[i] = static_cast<float>(
          std::pow(1e6, -static_cast<double>(i) / static_cast<double>(shape.num_pairs)));
    }
    check(shape, heads, frequencies, {0, 1, 2, 77, 4095, 131071});
  }
};

TEST_P(Rope, TemperGrowsRowsByStepsOfTheirPositions) {
  const std::vector<int32_t> positions = {0, 6, 7, 8, 20, 8191, 1'000'000};
  const auto rows = static_cast<int64_t>(positions.size()), cols = int64_t{70};
  const std::vector<float> x = normal(rows * cols);
  for (const int32_t offset : {0, 1}) {
    const Matrix got_matrix = matrix(x, rows, cols);
    expect_done(ops().temper(got_matrix, upload(positions), offset, 8, 0.3f, {}));
    const std::vector<float> got = floats(got_matrix);
    for (int64_t i = 0; i < rows * cols; ++i) {
      const double factor = 1 + 0.3f * std::log1p((positions[i / cols] + offset) / 8);
      ASSERT_NEAR(got[i], x[i] * factor, bound(x[i] * factor, 8 * kU * std::fabs(x[i] * factor)));
      if (positions[i / cols] + offset < 8) {
        ASSERT_EQ(got[i], x[i]);
      }
    }
  }
}

TEST_P(Rope, RotatesByPosition) {
  check({16, 8}, 3);
  check({2, 1}, 1);
}

TEST_P(Rope, SupportsInterleavedPairs) {
  check({16, 8, 0, true}, 3);
}

TEST_P(Rope, KeepsUnrotatedPartOfHead) {
  check({20, 4}, 3);
  check({24, 5, 11}, 2);
  check({24, 5, 14, true}, 2);
}

TEST_P(Rope, ScalesRotatedPartByFactor) {
  check({16, 8, 0, false, 1.3466f}, 2);
  check({18, 4, 6, true, 0.75f}, 2);
}

TEST_P(Rope, RotatesManyRows) {
  std::vector<float> frequencies(7);
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(0.1f, static_cast<float>(i));
  std::vector<int32_t> positions(270);
  for (size_t r = 0; r < positions.size(); ++r) positions[r] = static_cast<int32_t>(r * 37 % 1000);
  for (const bool interleaved : {false, true})
    check({20, 7, 4, interleaved, 1.25f}, 3, frequencies, positions);
}

MORACLE_ON_EVERY_DEVICE(Rope);

// Queries, keys and values of the tokens of two sequences, side by side in one matrix.
class RopeAndAppend : public testing::DeviceOpsTest {
 protected:
  static constexpr int64_t kKvHeads = 2;
  int64_t heads_ = 6;
  int64_t tokens_ = 4;                     // of the first sequence; the second has three
  float key_scale_ = 1, value_scale_ = 1;  // of the cache

  // The norms and RoPE of one head in double.
  std::vector<double> expected(const float* head, const QkNormRope& rope,
                               const std::vector<float>& norm,
                               const std::vector<float>& frequencies, int32_t position) {
    const int64_t dim = rope.rotary.head_dim;
    std::vector<double> normed(head, head + dim), want(dim);
    if (!norm.empty()) {
      double squares = 0;
      for (const double value : normed) squares += value * value;
      const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + rope.epsilon);
      for (int64_t c = 0; c < dim; ++c) normed[c] *= scale * norm[c];
    }
    for (int64_t c = 0; c < dim; ++c)
      want[c] = rotated(rope.rotary, frequencies, position, normed.data(), c).value;
    return want;
  }
  void expect_near(float got, double want, DType stored, const std::string& what) {
    const double size = std::fabs(want);
    const double rounding = stored == DType::kF8E4M3 ? 0x1p-4 * size + 0x1p-10 : 0;
    ASSERT_NEAR(got, want,
                rounding + (dtype() == DType::kF32 ? 1e-5 * (1 + size) : 0x1p-7 * size + 0.02))
        << what;
  }

  void check(int64_t dim, bool normed, bool interleaved) {
    check(dim, normed, interleaved, dtype());
  }
  void check(int64_t dim, bool normed, bool interleaved, DType cache) {
    const int64_t cols = (heads_ + 2 * kKvHeads) * dim, num_tokens = tokens_ + 3;
    const std::vector<float> qkv = normal(num_tokens * cols);
    const auto norm = [&] {
      return normed ? testing::normal_floats(random_, dim) : std::vector<float>();
    };
    const std::vector<float> q_norm = norm(), k_norm = norm();
    std::vector<float> frequencies(dim / 2);
    for (size_t i = 0; i < frequencies.size(); ++i)
      frequencies[i] = std::pow(0.7f, static_cast<float>(i));
    const QkNormRope rope{normed ? upload(q_norm) : nullptr,
                          normed ? upload(k_norm) : nullptr,
                          1e-6f,
                          {dim, dim / 2, 0, interleaved, 1.5f},
                          upload(frequencies)};
    const std::vector<testing::PagedCaches::Tokens> step = {{0, 295, tokens_}, {1, 62, 3}};
    testing::PagedCaches caches({296 + tokens_, 90}, kKvHeads * dim, kKvHeads * dim, cache,
                                std::min<int64_t>(256, cache_page(device_->platform())), kKvHeads);
    caches.upload(*device_);
    LayerCache layer = caches.layer();
    layer.key_scale = key_scale_, layer.value_scale = value_scale_;
    const Matrix all = matrix(qkv, num_tokens, cols);
    expect_done(ops().rope_and_append(columns(all, 0, heads_ * dim),
                                      columns(all, heads_ * dim, kKvHeads * dim),
                                      columns(all, (heads_ + kKvHeads) * dim, kKvHeads * dim), rope,
                                      caches.batch_there(step, *device_), layer, {}));
    caches.download(*device_);
    const std::vector<float> got = floats(all);
    const float* row = qkv.data();
    for (const auto& one : step) {
      for (int64_t i = one.position; i < one.position + one.count; ++i, row += cols) {
        const auto position = static_cast<int32_t>(i);
        for (int64_t head = 0; head < heads_ + kKvHeads; ++head) {
          const bool is_query = head < heads_;
          const std::vector<double> want =
              expected(row + head * dim, rope, is_query ? q_norm : k_norm, frequencies, position);
          for (int64_t c = 0; c < dim; ++c) {
            const float found =
                is_query ? got[row - qkv.data() + head * dim + c]
                         : caches.get(caches.key(one.sequence, i), (head - heads_) * dim + c) *
                               key_scale_;
            expect_near(found, want[c], is_query ? dtype() : cache,
                        str("position ", i, ", head ", head, ", column ", c));
          }
        }
        for (int64_t c = 0; c < kKvHeads * dim; ++c)
          ASSERT_EQ(caches.get(caches.value(one.sequence, i), c),
                    testing::rounded_to(cache, row[(heads_ + kKvHeads) * dim + c] / value_scale_));
      }
    }
  }
};

TEST_P(RopeAndAppend, MatchesNormRotationAndAppend) {
  for (const int64_t dim : {20, 64, 128}) {
    SCOPED_TRACE(str("heads of ", dim, " columns"));
    check(dim, false, false);
    check(dim, true, false);
  }
}

// From 2,048 tokens on, one GPU warp handles all heads of a token. A CPU has one code path.
TEST_P(RopeAndAppend, MatchesWithManyTokens) {
  heads_ = 12, tokens_ = device_->platform() == Platform::kCpu ? 300 : 2100;
  for (const int64_t dim : {64, 128}) {
    SCOPED_TRACE(str("heads of ", dim, " columns"));
    check(dim, true, false);
    check(dim, false, false);
  }
}

TEST_P(RopeAndAppend, SupportsInterleavedPairs) {
  for (const int64_t dim : {20, 64, 128}) {
    SCOPED_TRACE(str("heads of ", dim, " columns"));
    check(dim, false, true);
    check(dim, true, true);
  }
}

TEST_P(RopeAndAppend, StoresE4m3) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "models refuse it there";
  for (const int64_t dim : {20, 64, 128}) {
    SCOPED_TRACE(str("heads of ", dim, " columns"));
    check(dim, true, false, DType::kF8E4M3);
    check(dim, false, true, DType::kF8E4M3);
  }
}

TEST_P(RopeAndAppend, DividesE4m3ByScales) {
  if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "models refuse it there";
  key_scale_ = 0.125f, value_scale_ = 4;
  for (const int64_t dim : {20, 64, 128}) {
    SCOPED_TRACE(str("heads of ", dim, " columns"));
    check(dim, true, false, DType::kF8E4M3);
    check(dim, false, true, DType::kF8E4M3);
  }
}

MORACLE_ON_EVERY_DEVICE(RopeAndAppend);

}  // namespace
}  // namespace moracle::rope_test
