// Hyper-connections on every device that has them, against their definition in double.
#include <numeric>

#include "kernels/kernel_device.h"
#include "kernels/ops/device_ops.h"

namespace moracle::hyper_ops_test {
namespace {

struct Case {
  int64_t streams, hidden, tokens;
};
// Whole vectors of columns and others; tokens that share the loads of a projection on a GPU.
constexpr Case kCases[] = {{4, 40, 1}, {4, 40, 300}, {2, 6, 3}, {3, 5, 200}, {16, 24, 5}};

struct Weights {
  std::vector<float> projection, base, scale;
};
struct Mixed {
  std::vector<double> input, kept;
};

class HyperOps : public testing::DeviceOpsTest {
 protected:
  void SetUp() override {
    DeviceOpsTest::SetUp();
    if (IsSkipped()) return;
    if (device_->platform() == Platform::kOpenCl) GTEST_SKIP() << "OpenCL has no kernels for it";
  }
  Weights draw(const Case& c) {
    const int64_t n = c.streams, rows = n + hyper_floats(n);
    return {testing::normal_floats(random_, rows * n * c.hidden,
                                   1 / std::sqrt(static_cast<float>(n * c.hidden))),
            testing::normal_floats(random_, rows, 1),
            {0.5f, 0.8f, 1.2f}};
  }
  HyperWeights uploaded(const Weights& weights) {
    return {upload(weights.projection), upload(weights.base), upload(weights.scale)};
  }
  static Mixed mix(const Case& c, const HyperShape& shape, const Weights& weights,
                   const float* streams) {
    const int64_t n = c.streams, cols = n * c.hidden;
    const double squares = std::inner_product(streams, streams + cols, streams, 0.0);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + shape.norm_epsilon);
    const auto number = [&](int64_t row, int kind) {
      const float* const own = &weights.projection[row * cols];
      return std::inner_product(streams, streams + cols, own, 0.0) * scale * weights.scale[kind] +
             weights.base[row];
    };
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    Mixed mixed;
    for (int64_t i = 0; i < n; ++i) mixed.input.push_back(sigmoid(number(i, 0)) + shape.epsilon);
    for (int64_t i = 0; i < n; ++i) mixed.kept.push_back(2 * sigmoid(number(n + i, 1)));
    std::vector<double> matrix;
    for (int64_t row = 0; row < n; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        matrix.push_back(std::exp(number(2 * n + row * n + i, 2)));
        sum += matrix.back();
      }
      for (int64_t i = 0; i < n; ++i)
        matrix[row * n + i] = matrix[row * n + i] / sum + shape.epsilon;
    }
    for (int64_t turn = 0; turn < 2 * shape.iterations - 1; ++turn) {
      const int64_t along = turn % 2 == 0 ? n : 1, across = turn % 2 == 0 ? 1 : n;
      for (int64_t line = 0; line < n; ++line) {
        double sum = shape.epsilon;
        for (int64_t i = 0; i < n; ++i) sum += matrix[line * across + i * along];
        for (int64_t i = 0; i < n; ++i) matrix[line * across + i * along] /= sum;
      }
    }
    mixed.kept.insert(mixed.kept.end(), matrix.begin(), matrix.end());
    return mixed;
  }
  static HyperShape shape_of(const Case& c) { return {c.streams, 20, 1e-6f, 1e-5f}; }
};

TEST_P(HyperOps, CollapseWeighsStreamsAndKeepsTheMixing) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.streams << " streams of " << c.hidden);
    const int64_t cols = c.streams * c.hidden, floats_kept = hyper_floats(c.streams);
    const HyperShape shape = shape_of(c);
    const Weights weights = draw(c);
    const std::vector<float> streams = normal(c.tokens * cols);
    const Matrix x = matrix(streams, c.tokens, cols);
    const HyperWeights there = uploaded(weights);
    for (const bool ends : {false, true}) {
      const Matrix out = blank(c.tokens, c.hidden);
      float* const kept = upload(std::vector<float>(c.tokens * floats_kept, NAN));
      expect_done(ops().collapse_streams(x, there, shape, out, ends ? nullptr : kept, {}));
      const std::vector<float> got = floats(out), got_kept = download(kept, c.tokens * floats_kept);
      for (int64_t t = 0; t < c.tokens; ++t) {
        const Mixed want = mix(c, shape, weights, &streams[t * cols]);
        for (int64_t i = 0; i < c.hidden; ++i) {
          double sum = 0;
          for (int64_t k = 0; k < c.streams; ++k)
            sum += want.input[k] * streams[t * cols + k * c.hidden + i];
          ASSERT_NEAR(got[t * c.hidden + i], sum, bound(sum, 2e-5)) << "token " << t;
        }
        for (int64_t i = 0; i < floats_kept; ++i) {
          const float value = got_kept[t * floats_kept + i];
          if (ends)
            ASSERT_TRUE(std::isnan(value));
          else
            ASSERT_NEAR(value, want.kept[i], f32_bound(want.kept[i], 1e-5)) << i;
        }
      }
    }
  }
}

TEST_P(HyperOps, TokenBitsDependOnNoOtherToken) {
  const Case c{4, 40, 300};
  const int64_t cols = c.streams * c.hidden, floats_kept = hyper_floats(c.streams);
  const HyperWeights weights = uploaded(draw(c));
  const std::vector<float> streams = normal(c.tokens * cols);
  const auto run = [&](const std::vector<float>& rows) {
    const int64_t tokens = std::ssize(rows) / cols;
    const Matrix out = blank(tokens, c.hidden);
    float* const kept = upload(std::vector<float>(tokens * floats_kept));
    expect_done(
        ops().collapse_streams(matrix(rows, tokens, cols), weights, shape_of(c), out, kept, {}));
    return std::pair(floats(out), download(kept, tokens * floats_kept));
  };
  const auto all = run(streams);
  for (const int64_t t : {0, 1, 7, 299}) {
    const auto one = run({streams.begin() + t * cols, streams.begin() + (t + 1) * cols});
    EXPECT_TRUE(std::equal(one.first.begin(), one.first.end(), all.first.begin() + t * c.hidden));
    EXPECT_TRUE(
        std::equal(one.second.begin(), one.second.end(), all.second.begin() + t * floats_kept));
  }
}

TEST_P(HyperOps, CollapseWithoutProjectionIsTheMean) {
  for (const Case& c : kCases) {
    const int64_t cols = c.streams * c.hidden;
    const std::vector<float> streams = normal(c.tokens * cols);
    const Matrix out = blank(c.tokens, c.hidden);
    expect_done(ops().collapse_streams(matrix(streams, c.tokens, cols), {nullptr, nullptr, nullptr},
                                       {c.streams}, out, nullptr, {}));
    const std::vector<float> got = floats(out);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t i = 0; i < c.hidden; ++i) {
        double sum = 0;
        for (int64_t k = 0; k < c.streams; ++k) sum += streams[t * cols + k * c.hidden + i];
        const double mean = sum / static_cast<double>(c.streams);
        ASSERT_NEAR(got[t * c.hidden + i], mean, bound(mean, 1e-6));
      }
    }
  }
}

TEST_P(HyperOps, ExpandMixesBranchIntoStreams) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.streams << " streams of " << c.hidden);
    const int64_t n = c.streams, cols = n * c.hidden, floats_kept = hyper_floats(n);
    const std::vector<float> streams = normal(c.tokens * cols),
                             branch = normal(c.tokens * c.hidden),
                             kept = testing::normal_floats(random_, c.tokens * floats_kept, 0.5f);
    const Matrix x = matrix(streams, c.tokens, cols);
    expect_done(ops().expand_streams(x, matrix(branch, c.tokens, c.hidden), n, upload(kept), {}));
    const std::vector<float> got = floats(x);
    for (int64_t t = 0; t < c.tokens; ++t) {
      const float* const own = &kept[t * floats_kept];
      for (int64_t k = 0; k < n; ++k) {
        for (int64_t i = 0; i < c.hidden; ++i) {
          double sum = double{own[k]} * branch[t * c.hidden + i];
          for (int64_t s = 0; s < n; ++s)
            sum += double{own[(s + 1) * n + k]} * streams[t * cols + s * c.hidden + i];
          ASSERT_NEAR(got[t * cols + k * c.hidden + i], sum, bound(sum, 1e-5)) << "stream " << k;
        }
      }
    }
  }
}

MORACLE_ON_EVERY_DEVICE(HyperOps);

}  // namespace
}  // namespace moracle::hyper_ops_test
