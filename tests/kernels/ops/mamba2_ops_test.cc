// Tests Mamba-2, its gate with RMSNorm, and the bias of its convolution, on every device against
// computation in double.
#include <limits>
#include <numeric>
#include <span>

#include "base/text.h"
#include "kernels/ops/recurrent_step.h"

namespace moracle::mamba2_ops_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The recurrence of one sequence, in double.
struct Recurrence {
  const Mamba2Shape& shape;
  std::vector<double> state;
  std::vector<double> step(const float* xbc, const float* dt, const float* a_log,
                           const float* dt_bias, const float* d) {
    const int64_t n = shape.state_dim, p = shape.head_dim;
    std::vector<double> out;
    for (int64_t h = 0; h < shape.num_heads; ++h) {
      const int64_t group = h / (shape.num_heads / shape.num_groups);
      const float* const x = xbc + h * p;
      const float* const b = xbc + shape.num_heads * p + group * n;
      const float* const c = b + shape.num_groups * n;
      const double softplus = std::log1p(std::exp(double{dt[h]} + dt_bias[h]));
      const double delta = std::clamp<double>(softplus, shape.least_step, shape.most_step);
      const double decay = std::exp(-std::exp(double{a_log[h]}) * delta);
      double* const s = &state[h * n * p];
      for (int64_t j = 0; j < p; ++j) {
        double sum = double{d[h]} * x[j];
        for (int64_t i = 0; i < n; ++i)
          sum += c[i] * (s[i * p + j] = decay * s[i * p + j] + b[i] * delta * x[j]);
        out.push_back(sum);
      }
    }
    return out;
  }
};

class Mamba2Ops : public testing::RecurrentOpsTest {};

TEST_P(Mamba2Ops, FollowsTheRecurrenceFromTheState) {
  for (const Mamba2Shape shape : {Mamba2Shape{4, 2, 6, 10, 0, kInfinity, 0},
                                  {3, 1, 70, 16, 0, kInfinity, 0},
                                  {2, 2, 3, 8, 0.6f, 1.1f, 0},
                                  {6, 3, 64, 130, 0, kInfinity, 0}}) {
    const int64_t inner = shape.num_heads * shape.head_dim;
    const int64_t cols = inner + 2 * shape.num_groups * shape.state_dim;
    const int64_t heads = shape.num_heads, size = inner * shape.state_dim, tokens = 8;
    const std::vector<float> xbc = normal(tokens * cols), dt = normal(tokens * heads, 2),
                             a_log = normal(heads), dt_bias = normal(heads), d = normal(heads),
                             before = normal(size);
    std::byte *const first = state(std::vector<float>(size, 7)), *const second = state(
                                                                     std::vector<float>(size, 7));
    const Batch step = batch({3, 5}, {nullptr, first, state(before), second});
    const Matrix out = blank(tokens, inner);
    expect_done(ops().mamba2(matrix(xbc, tokens, cols), matrix(dt, tokens, heads), upload(a_log),
                             upload(dt_bias), upload(d), shape, step, out, {}));
    const std::vector<float> got = floats(out);
    Recurrence begun{shape, std::vector<double>(size, 0.0)},
        continued{shape, {before.begin(), before.end()}};
    for (int64_t t = 0; t < tokens; ++t) {
      Recurrence& one = t < 3 ? begun : continued;
      const std::vector<double> want =
          one.step(&xbc[t * cols], &dt[t * heads], a_log.data(), dt_bias.data(), d.data());
      for (int64_t c = 0; c < inner; ++c)
        ASSERT_NEAR(got[t * inner + c], want[c], bound(want[c], 2e-5 + 2e-6 * std::fabs(want[c])))
            << t << ", " << c;
    }
    const auto after = download(reinterpret_cast<float*>(second), size);
    for (int64_t i = 0; i < size; ++i)
      ASSERT_NEAR(after[i], continued.state[i], f32_bound(continued.state[i], 2e-5)) << i;
  }
}

// Runs of 12 and of 1,024 columns, each with weights of its own.
TEST_P(Mamba2Ops, GateAndNormHasWeightsOfEveryColumn) {
  const int64_t rows = 5, groups = 2, epsilon_digits = 1000;
  for (const int64_t size : {12, 1024}) {
    const int64_t cols = groups * size;
    const std::vector<float> x = normal(rows * cols), by = normal(rows * (cols + 8)),
                             weight = normal(cols);
    const Matrix to = matrix(x, rows, cols), gates = matrix(by, rows, cols + 8);
    expect_done(ops().gate_and_norm(to, columns(gates, 8, cols), upload(weight), size,
                                    1.0f / epsilon_digits, {}));
    const std::vector<float> got = floats(to);
    for (int64_t r = 0; r < rows; ++r) {
      const auto gated = [&](int64_t c) {
        const double g = by[r * (cols + 8) + 8 + c];
        return x[r * cols + c] * g / (1 + std::exp(-g));
      };
      for (int64_t c = 0; c < cols; ++c) {
        double squares = 0;
        for (int64_t i = 0; i < size; ++i) squares += std::pow(gated(c / size * size + i), 2);
        const double want = gated(c) /
                            std::sqrt(squares / static_cast<double>(size) + 1.0 / epsilon_digits) *
                            weight[c];
        ASSERT_NEAR(got[r * cols + c], want, bound(want, 4e-6 * (std::fabs(want) + 1e-3)))
            << size << ": " << r << ", " << c;
      }
    }
  }
}

TEST_P(Mamba2Ops, ConvolutionAddsBiasBeforeSilu) {
  for (const auto& [cols, kernel] : {std::pair<int64_t, int64_t>{21, 4}, {64, 4}, {64, 3}}) {
    const int64_t tokens = 6, past = kernel - 1;
    const std::vector<float> x = normal(tokens * cols), weight = normal(kernel * cols),
                             bias = normal(cols);
    for (const bool with_silu : {false, true}) {
      ConvolutionShape shape{kernel, with_silu, 0};
      shape.bias = upload(bias);
      const Batch step = batch({tokens}, {nullptr, state(std::vector<float>(past * cols, 7))});
      const Matrix out = blank(tokens, cols);
      expect_done(ops().convolve(matrix(x, tokens, cols), upload(weight), shape, step, out, {}));
      const std::vector<float> got = floats(out);
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 0; c < cols; ++c) {
          double want = bias[c];
          for (int64_t j = 0; j < kernel; ++j)
            want += t - past + j < 0 ? 0.0
                                     : double{weight[j * cols + c]} * x[(t - past + j) * cols + c];
          if (with_silu) want /= 1 + std::exp(-want);
          ASSERT_NEAR(got[t * cols + c], want, bound(want, 1e-5)) << t << ", " << c;
        }
      }
    }
  }
}

/// Sequences of several lengths through heads of published size.
class Mamba2InChunks : public Mamba2Ops {
 protected:
  void SetUp() override {
    Mamba2Ops::SetUp();
    if (IsSkipped()) return;
    xbc_ = rounded(normal(kTokens * kCols));
    dt_ = normal(kTokens * kHeads, 2);
    a_log_ = normal(kHeads), dt_bias_ = normal(kHeads), d_ = normal(kHeads);
    // Slow decays, so that all tokens matter.
    for (float& x : dt_bias_) x -= 4;
    for (size_t s = 0; s < kCounts.size(); ++s) before_.push_back(normal(kSize, 0.3f));
  }
  struct Results {
    std::vector<float> out;                 // [tokens, kInner]
    std::vector<std::vector<float>> state;  // of each sequence
  };
  /// Runs sequences [first, last).
  Results run(size_t first, size_t last, bool batch_invariant) {
    const int64_t begin = std::accumulate(kCounts.begin(), kCounts.begin() + first, int64_t{0});
    const std::vector<int64_t> counts(kCounts.begin() + first, kCounts.begin() + last);
    const int64_t tokens = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const auto rows = [&](const std::vector<float>& all, int64_t cols) {
      return matrix({all.begin() + begin * cols, all.begin() + (begin + tokens) * cols}, tokens,
                    cols);
    };
    std::vector<std::byte*> states;
    for (size_t s = first; s < last; ++s) {
      states.push_back(s == 2 ? nullptr : state(before_[s]));
      states.push_back(state(std::vector<float>(kSize, 7)));
    }
    const Matrix out = blank(tokens, kInner);
    expect_done(ops().mamba2(rows(xbc_, kCols), rows(dt_, kHeads), upload(a_log_), upload(dt_bias_),
                             upload(d_), shape(batch_invariant), batch(counts, states), out, {}));
    Results results{floats(out), {}};
    for (size_t i = 0; i < counts.size(); ++i)
      results.state.push_back(download(reinterpret_cast<const float*>(states[2 * i + 1]), kSize));
    return results;
  }
  static Mamba2Shape shape(bool batch_invariant) {
    Mamba2Shape shape{kHeads, kGroups, kDim, kStates, 0, kInfinity, 0};
    shape.batch_invariant = batch_invariant;
    return shape;
  }
  static double difference(std::span<const float> got, std::span<const double> want) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      apart += std::pow(got[i] - want[i], 2);
      size += want[i] * want[i];
    }
    return std::sqrt(apart / size);
  }

  // Ten heads of a group: more than go through a chunk together on a CPU.
  static constexpr int64_t kDim = 64, kHeads = 20, kGroups = 2, kStates = 128,
                           kInner = kHeads * kDim, kCols = kInner + 2 * kGroups * kStates,
                           kSize = kInner * kStates;
  const std::vector<int64_t> kCounts = {150, 3, 64, 0, 17};
  static constexpr int64_t kTokens = 150 + 3 + 64 + 17;
  std::vector<float> xbc_, dt_, a_log_, dt_bias_, d_;
  std::vector<std::vector<float>> before_;
};

TEST_P(Mamba2InChunks, FollowsTheRecurrence) {
  const Results got = run(0, kCounts.size(), false);
  const Mamba2Shape sizes = shape(false);
  // Chunks on a GPU multiply bf16, and outputs are rounded to bf16.
  const double close = is_cpu() ? 1e-5 : 8e-3;
  for (size_t s = 0, t = 0; s < kCounts.size(); ++s) {
    Recurrence one{sizes, std::vector<double>(kSize, 0.0)};
    if (s != 2) one.state.assign(before_[s].begin(), before_[s].end());
    std::vector<double> want;
    const size_t first = t * kInner;
    for (int64_t i = 0; i < kCounts[s]; ++i, ++t) {
      const auto row =
          one.step(&xbc_[t * kCols], &dt_[t * kHeads], a_log_.data(), dt_bias_.data(), d_.data());
      want.insert(want.end(), row.begin(), row.end());
    }
    if (want.empty()) {
      EXPECT_EQ(got.state[s], std::vector<float>(kSize, 7));
      continue;
    }
    EXPECT_LT(difference(std::span(got.out).subspan(first, want.size()), want), close) << s;
    EXPECT_LT(difference(got.state[s], one.state), close) << s;
  }
}

// The third sequence has decays that are 0 in f32, and one without any.
TEST_P(Mamba2InChunks, FollowsTheRecurrenceWithStrongDecays) {
  for (float& x : a_log_) x = 4;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) dt_[t * kHeads + h] = t % 3 == 0 ? -30.0f : 8.0f;
  }
  const Results got = run(2, 3, false);
  const Mamba2Shape sizes = shape(false);
  Recurrence one{sizes, std::vector<double>(kSize, 0.0)};
  std::vector<double> want;
  for (int64_t t = 153; t < 153 + 64; ++t) {
    const auto row =
        one.step(&xbc_[t * kCols], &dt_[t * kHeads], a_log_.data(), dt_bias_.data(), d_.data());
    want.insert(want.end(), row.begin(), row.end());
  }
  const double close = is_cpu() ? 1e-5 : 8e-3;
  EXPECT_LT(difference(got.out, want), close);
  EXPECT_LT(difference(got.state[0], one.state), close);
}

// Enough states for stores that bypass the caches.
TEST_P(Mamba2InChunks, SingleTokensOfManySequencesFollowTheRecurrence) {
  constexpr int64_t kMany = 8;
  static_assert(kMany * kSize * 4 > int64_t{4} << 20);
  std::vector<std::byte*> states;
  std::vector<std::vector<float>> before;
  for (int64_t s = 0; s < kMany; ++s) {
    before.push_back(normal(kSize, 0.3f));
    states.push_back(state(before.back()));
    states.push_back(state(std::vector<float>(kSize, 7)));
  }
  const Matrix out = blank(kMany, kInner);
  expect_done(ops().mamba2(matrix({xbc_.begin(), xbc_.begin() + kMany * kCols}, kMany, kCols),
                           matrix({dt_.begin(), dt_.begin() + kMany * kHeads}, kMany, kHeads),
                           upload(a_log_), upload(dt_bias_), upload(d_), shape(false),
                           batch(std::vector<int64_t>(kMany, 1), states), out, {}));
  const std::vector<float> got = floats(out);
  const Mamba2Shape sizes = shape(false);
  for (int64_t s = 0; s < kMany; ++s) {
    Recurrence one{sizes, {before[s].begin(), before[s].end()}};
    const std::vector<double> want =
        one.step(&xbc_[s * kCols], &dt_[s * kHeads], a_log_.data(), dt_bias_.data(), d_.data());
    EXPECT_LT(difference(std::span(got).subspan(s * kInner, kInner), want), is_cpu() ? 1e-6 : 8e-3)
        << s;
    const auto after = download(reinterpret_cast<const float*>(states[2 * s + 1]), kSize);
    EXPECT_LT(difference(after, one.state), 1e-5) << s;
  }
}

TEST_P(Mamba2InChunks, BitsOfSequenceDoNotDependOnOthers) {
  for (const bool batch_invariant : {false, true}) {
    const Results together = run(0, kCounts.size(), batch_invariant);
    for (size_t s = 0, t = 0; s < kCounts.size(); t += kCounts[s++]) {
      if (kCounts[s] == 0) continue;
      const Results alone = run(s, s + 1, batch_invariant);
      const auto first = together.out.begin() + t * kInner;
      EXPECT_EQ(alone.out, std::vector<float>(first, first + alone.out.size())) << s;
      EXPECT_EQ(alone.state[0], together.state[s]) << s;
    }
  }
}

TEST_P(Mamba2InChunks, BatchInvariantBitsDoNotDependOnStep) {
  const Results whole = run(0, 1, true);
  // The same tokens in steps of 1, 20 and the rest.
  const int64_t tokens = kCounts[0];
  const Matrix xbc = matrix({xbc_.begin(), xbc_.begin() + tokens * kCols}, tokens, kCols),
               dt = matrix({dt_.begin(), dt_.begin() + tokens * kHeads}, tokens, kHeads),
               out = blank(tokens, kInner);
  const float *const a_log = upload(a_log_), *const dt_bias = upload(dt_bias_),
                     *const d = upload(d_);
  std::byte* before = state(before_[0]);
  int64_t at = 0;
  for (const int64_t count : {int64_t{1}, int64_t{20}, tokens - 21}) {
    std::byte* const after = state(std::vector<float>(kSize, 7));
    expect_done(ops().mamba2(xbc.slice(at, count), dt.slice(at, count), a_log, dt_bias, d,
                             shape(true), batch({count}, {before, after}), out.slice(at, count),
                             {}));
    before = after, at += count;
  }
  EXPECT_EQ(floats(out), whole.out);
  EXPECT_EQ(download(reinterpret_cast<const float*>(before), kSize), whole.state[0]);
}

MORACLE_ON_EVERY_DEVICE(Mamba2Ops);
MORACLE_ON_EVERY_DEVICE(Mamba2InChunks);

}  // namespace
}  // namespace moracle::mamba2_ops_test
