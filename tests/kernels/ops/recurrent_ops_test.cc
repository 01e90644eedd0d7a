// Tests gates, short convolutions and the gated delta rule on every device against computation in
// double.
#include <algorithm>
#include <numeric>
#include <span>

#include "base/text.h"
#include "kernels/ops/recurrent_step.h"

namespace moracle::recurrent_ops_test {
namespace {

class RecurrentOps : public testing::RecurrentOpsTest {};

constexpr Gate kGates[] = {Gate::kIdentity, Gate::kSigmoid, Gate::kSilu, Gate::kSoftplus};
double factor_of(double gate, Gate function) {
  const double sigmoid = 1 / (1 + std::exp(-gate));
  if (function == Gate::kIdentity) return gate;
  if (function == Gate::kSoftplus) return std::log1p(std::exp(gate));
  return function == Gate::kSilu ? gate * sigmoid : sigmoid;
}

TEST_P(RecurrentOps, GateMultipliesHeadsByFunctionOfOtherColumns) {
  const int64_t rows = 5, heads = 3, count = 7;
  const std::vector<float> x = normal(rows * heads * count), by = normal(rows * heads * 9, 3);
  for (const Gate function : kGates) {
    const Matrix to = matrix(x, rows, heads * count), from = matrix(by, rows, heads * 9);
    expect_done(
        ops().gate(to, count, columns(from, 2, heads * 9 - 2), 9, heads, count, function, {}));
    const std::vector<float> got = floats(to);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < count; ++c) {
          const double factor = factor_of(by[r * heads * 9 + h * 9 + 2 + c], function);
          const int64_t i = r * heads * count + h * count + c;
          const double want = x[i] * factor;
          ASSERT_NEAR(got[i], want, bound(want, 1e-6 * (std::fabs(want) + 1e-3))) << i;
        }
      }
    }
  }
}

// One gate above 20, where the exponential of a softplus may overflow on its way.
TEST_P(RecurrentOps, GateOfHeadMultipliesAllItsColumns) {
  const int64_t rows = 5, heads = 3, dim = 7;
  const std::vector<float> x = normal(rows * heads * dim);
  std::vector<float> by = normal(rows * (heads + 2), 3);
  by[3] = 120;
  for (const Gate function : kGates) {
    const Matrix to = matrix(x, rows, heads * dim), from = matrix(by, rows, heads + 2);
    expect_done(ops().gate_heads(to, columns(from, 2, heads), dim, function, {}));
    const std::vector<float> got = floats(to);
    for (int64_t i = 0; i < rows * heads * dim; ++i) {
      const int64_t r = i / (heads * dim), head = i % (heads * dim) / dim;
      const double gate = by[r * (heads + 2) + 2 + head];
      const double want = x[i] * factor_of(gate, function);
      ASSERT_NEAR(got[i], want, bound(want, 1e-6 * (std::fabs(want) + 1e-3))) << i;
    }
  }
}

// The first sequence starts, the second continues, the third has no tokens in this step.
TEST_P(RecurrentOps, ConvolutionReadsRowsOfEarlierSteps) {
  for (const auto& [cols, kernel] :
       {std::pair<int64_t, int64_t>{21, 4}, {64, 4}, {64, 3}, {8, 2}, {5, 2}}) {
    for (const int64_t count : {1, 2, 9}) {
      SCOPED_TRACE(str(cols, " columns, ", kernel, " taps, ", count, " tokens"));
      const int64_t past = kernel - 1;
      const std::vector<float> earlier = normal(past * cols), weight = normal(kernel * cols);
      const std::vector<float> x = normal((2 + count) * cols);
      const std::vector<float> blank_state(past * cols, 7);
      std::byte *const first = state(blank_state), *const second = state(blank_state),
                       *const third = state(blank_state);
      const Batch step =
          batch({2, count, 0}, {nullptr, first, state(earlier), second, nullptr, third});
      for (const bool with_silu : {false, true}) {
        const Matrix out = blank(2 + count, cols);
        expect_done(ops().convolve(matrix(x, 2 + count, cols), upload(weight),
                                   {kernel, with_silu, 0}, step, out, {}));
        const std::vector<float> got = floats(out);
        for (int64_t r = 0; r < 2 + count; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            double want = 0;
            for (int64_t j = 0; j < kernel; ++j) {
              const int64_t t = (r < 2 ? r : r - 2) - past + j;
              const double value = t >= 0  ? x[(r < 2 ? t : t + 2) * cols + c]
                                   : r < 2 ? 0
                                           : earlier[(past + t) * cols + c];
              want += value * weight[j * cols + c];
            }
            if (with_silu) want = want / (1 + std::exp(-want));
            ASSERT_NEAR(got[r * cols + c], want, bound(want, 3e-6)) << r << ", " << c;
          }
        }
      }
      const auto saved = download(reinterpret_cast<float*>(second), past * cols);
      for (int64_t i = 0; i < past; ++i) {
        const int64_t t = count - past + i;
        EXPECT_EQ(row(saved, cols, i), t >= 0 ? row(x, cols, 2 + t) : row(earlier, cols, past + t));
      }
      const auto begun = download(reinterpret_cast<float*>(first), past * cols);
      for (int64_t i = 0; i < past; ++i) {
        const int64_t t = 2 - past + i;
        EXPECT_EQ(row(begun, cols, i), t >= 0 ? row(x, cols, t) : std::vector<float>(cols, 0));
      }
      EXPECT_EQ(download(reinterpret_cast<float*>(third), past * cols), blank_state);
    }
  }
}

// Heads whose pieces are whole vectors of columns, and heads whose pieces are not.
TEST_P(RecurrentOps, ConvolutionReordersSplitHeads) {
  for (const HeadSplit& split :
       {HeadSplit{3, 40, {8, 16, 16}}, {2, 11, {3, 3, 4}}, {2, 7, {2, 1, 3}}}) {
    const int64_t kernel = 4, past = kernel - 1, tokens = 6,
                  x_cols = split.num_heads * split.head_dim;
    const int64_t cols = split.num_heads * (split.sizes[0] + split.sizes[1] + split.sizes[2]);
    const std::vector<float> x = normal(tokens * x_cols), earlier = normal(past * cols),
                             weight = normal(kernel * cols);
    std::vector<float> ordered;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t first = 0, section = 0; section < 3; first += split.sizes[section++]) {
        for (int64_t head = 0; head < split.num_heads; ++head) {
          const auto from = x.begin() + t * x_cols + head * split.head_dim + first;
          ordered.insert(ordered.end(), from, from + split.sizes[section]);
        }
      }
    }
    std::byte *const after = state(std::vector<float>(past * cols, 7)), *const same_after = state(
                                                                            std::vector<float>(
                                                                                past * cols, 7));
    const Batch step = batch({tokens}, {state(earlier), after}),
                same_step = batch({tokens}, {state(earlier), same_after});
    const Matrix out = blank(tokens, cols), same = blank(tokens, cols);
    expect_done(ops().convolve(matrix(x, tokens, x_cols), upload(weight), {kernel, true, 0, split},
                               step, out, {}));
    expect_done(ops().convolve(matrix(ordered, tokens, cols), upload(weight), {kernel, true, 0},
                               same_step, same, {}));
    EXPECT_EQ(floats(out), floats(same));
    EXPECT_EQ(download(reinterpret_cast<float*>(after), past * cols),
              download(reinterpret_cast<float*>(same_after), past * cols));
  }
}

TEST_P(RecurrentOps, NormAndGateScalesRunsAndMultiplies) {
  const int64_t rows = 3, runs = 4, epsilon_digits = 1000;
  for (const int64_t size : {128, 12}) {
    const int64_t cols = runs * size, count = 2 * size, by_dim = count + 8;
    const std::vector<float> x = normal(rows * cols), by = normal(rows * 2 * by_dim),
                             weight = normal(size);
    const Matrix out = blank(rows, cols);
    expect_done(ops().norm_and_gate(matrix(x, rows, cols),
                                    {upload(weight), size, 1.0f / epsilon_digits, Gate::kSilu},
                                    matrix(by, rows, 2 * by_dim), by_dim, count, out, {}));
    const std::vector<float> got = floats(out);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        double squares = 0;
        for (int64_t i = 0; i < size; ++i)
          squares += std::pow(double{x[r * cols + c / size * size + i]}, 2);
        const double g = by[r * 2 * by_dim + c / count * by_dim + c % count];
        const double want = x[r * cols + c] / std::sqrt(squares / size + 1.0 / epsilon_digits) *
                            weight[c % size] * g / (1 + std::exp(-g));
        ASSERT_NEAR(got[r * cols + c], want, bound(want, 3e-6 * (std::fabs(want) + 1e-3)))
            << size << ": " << r << ", " << c;
      }
    }
  }
}

/// The rule of one sequence, in double.
struct Rule {
  const GatedDeltaShape& shape;
  std::vector<double> state;
  std::vector<double> step(const float* qkv, const float* ba, const float* a_log,
                           const float* dt_bias) {
    const int64_t keys = shape.num_key_heads * shape.key_dim, dk = shape.key_dim,
                  dv = shape.value_dim;
    std::vector<double> out;
    for (int64_t h = 0; h < shape.num_value_heads; ++h) {
      const int64_t key = h / (shape.num_value_heads / shape.num_key_heads);
      const auto unit = [&](const float* x) {
        double squares = 1e-6;
        for (int64_t i = 0; i < dk; ++i) squares += double{x[i]} * x[i];
        std::vector<double> y(x, x + dk);
        for (double& value : y) value /= std::sqrt(squares);
        return y;
      };
      const std::vector<double> q = unit(qkv + key * dk), k = unit(qkv + keys + key * dk);
      const float* const v = qkv + 2 * keys + h * dv;
      const int64_t b = h / shape.ba_group * 2 * shape.ba_group + h % shape.ba_group;
      const double a = double{ba[b + shape.ba_group]} + dt_bias[h];
      const double decay = std::exp(-std::exp(double{a_log[h]}) * std::log1p(std::exp(a)));
      const double strength = 1 / (1 + std::exp(-double{ba[b]}));
      double* const s = &state[h * dk * dv];
      for (int64_t c = 0; c < dv; ++c) {
        double known = 0, sum = 0;
        for (int64_t i = 0; i < dk; ++i) known += k[i] * (s[i * dv + c] *= decay);
        for (int64_t i = 0; i < dk; ++i)
          sum += q[i] * (s[i * dv + c] += k[i] * strength * (v[c] - known));
        out.push_back(sum / std::sqrt(static_cast<double>(dk)));
      }
    }
    return out;
  }
};

TEST_P(RecurrentOps, GatedDeltaFollowsTheRuleFromTheState) {
  for (const GatedDeltaShape shape :
       {GatedDeltaShape{2, 4, 6, 10, 2, 0}, {1, 3, 16, 70, 3, 0}, {2, 2, 8, 3, 2, 0}}) {
    const int64_t value_cols = shape.num_value_heads * shape.value_dim;
    const int64_t cols = 2 * shape.num_key_heads * shape.key_dim + value_cols;
    const int64_t gates = 2 * shape.num_value_heads, size = value_cols * shape.key_dim;
    const int64_t tokens = 8;
    const std::vector<float> qkv = normal(tokens * cols, 2), ba = normal(tokens * gates, 2),
                             a_log = normal(shape.num_value_heads),
                             dt_bias = normal(shape.num_value_heads), before = normal(size);
    std::byte *const first = state(std::vector<float>(size, 7)), *const second = state(
                                                                     std::vector<float>(size, 7));
    const Batch step = batch({3, 5}, {nullptr, first, state(before), second});
    const Matrix out = blank(tokens, value_cols);
    expect_done(ops().gated_delta(matrix(qkv, tokens, cols), matrix(ba, tokens, gates),
                                  upload(a_log), upload(dt_bias), shape, step, out, nullptr, {}));
    const std::vector<float> got = floats(out);
    Rule begun{shape, std::vector<double>(size, 0.0)},
        continued{shape, {before.begin(), before.end()}};
    for (int64_t t = 0; t < tokens; ++t) {
      Rule& rule = t < 3 ? begun : continued;
      const std::vector<double> want =
          rule.step(&qkv[t * cols], &ba[t * gates], a_log.data(), dt_bias.data());
      for (int64_t c = 0; c < value_cols; ++c)
        ASSERT_NEAR(got[t * value_cols + c], want[c], bound(want[c], 2e-5)) << t << ", " << c;
    }
    const auto after = download(reinterpret_cast<float*>(second), size);
    for (int64_t i = 0; i < size; ++i)
      ASSERT_NEAR(after[i], continued.state[i], f32_bound(continued.state[i], 2e-5)) << i;
  }
}

/// Sequences of several lengths through heads of published size.
class DeltaRuleInChunks : public RecurrentOps {
 protected:
  void SetUp() override {
    RecurrentOps::SetUp();
    if (IsSkipped()) return;
    qkv_ = normal(kTokens * kCols);
    ba_ = normal(kTokens * 2 * kHeads, 2);
    a_log_ = normal(kHeads), dt_bias_ = normal(kHeads);
    // Slow decays, so that all tokens matter. Neighbouring keys are similar, as in text.
    for (float& x : dt_bias_) x -= 4;
    for (int64_t t = 1; t < kTokens; ++t) {
      for (int64_t c = 0; c < 4 * kDim; ++c)
        qkv_[t * kCols + c] = 0.5f * (qkv_[t * kCols + c] + qkv_[(t - 1) * kCols + c]);
    }
    qkv_ = rounded(qkv_);
    for (size_t s = 0; s < kCounts.size(); ++s) before_.push_back(normal(kSize, 0.3f));
  }
  struct Results {
    std::vector<float> out;                 // [tokens, kHeads * kDim]
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
    GatedDeltaShape shape{2, kHeads, kDim, kDim, 2, 0};
    shape.batch_invariant = batch_invariant;
    const Matrix out = blank(tokens, kHeads * kDim);
    std::byte* const scratch = allocate(gated_delta_scratch_bytes(shape, tokens, dtype()) + 64);
    expect_done(ops().gated_delta(rows(qkv_, kCols), rows(ba_, 2 * kHeads), upload(a_log_),
                                  upload(dt_bias_), shape, batch(counts, states), out, scratch,
                                  {}));
    Results results{floats(out), {}};
    for (size_t i = 0; i < counts.size(); ++i)
      results.state.push_back(download(reinterpret_cast<const float*>(states[2 * i + 1]), kSize));
    return results;
  }
  static double difference(std::span<const float> got, std::span<const double> want) {
    double apart = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      apart += std::pow(got[i] - want[i], 2);
      size += want[i] * want[i];
    }
    return std::sqrt(apart / size);
  }

  static constexpr int64_t kDim = 128, kHeads = 4, kCols = (4 + kHeads) * kDim,
                           kSize = kHeads * kDim * kDim;
  const std::vector<int64_t> kCounts = {150, 3, 64, 0, 17};
  static constexpr int64_t kTokens = 150 + 3 + 64 + 17;
  std::vector<float> qkv_, ba_, a_log_, dt_bias_;
  std::vector<std::vector<float>> before_;
};

TEST_P(DeltaRuleInChunks, FollowsTheRule) {
  const Results got = run(0, kCounts.size(), false);
  const GatedDeltaShape shape{2, kHeads, kDim, kDim, 2, 0};
  // Chunks on a GPU multiply bf16, and outputs are rounded to bf16.
  const double close = is_cpu() ? 1e-5 : 8e-3;
  for (size_t s = 0, t = 0; s < kCounts.size(); ++s) {
    Rule rule{shape, std::vector<double>(kSize, 0.0)};
    if (s != 2) rule.state.assign(before_[s].begin(), before_[s].end());
    std::vector<double> want;
    const size_t first = t * kHeads * kDim;
    for (int64_t i = 0; i < kCounts[s]; ++i, ++t) {
      const auto row =
          rule.step(&qkv_[t * kCols], &ba_[t * 2 * kHeads], a_log_.data(), dt_bias_.data());
      want.insert(want.end(), row.begin(), row.end());
    }
    if (want.empty()) {
      EXPECT_EQ(got.state[s], std::vector<float>(kSize, 7));
      continue;
    }
    EXPECT_LT(difference(std::span(got.out).subspan(first, want.size()), want), close) << s;
    EXPECT_LT(difference(got.state[s], rule.state), close) << s;
  }
}

TEST_P(DeltaRuleInChunks, BitsOfSequenceDoNotDependOnOthers) {
  for (const bool batch_invariant : {false, true}) {
    const Results together = run(0, kCounts.size(), batch_invariant);
    for (size_t s = 0, t = 0; s < kCounts.size(); t += kCounts[s++]) {
      if (kCounts[s] == 0) continue;
      const Results alone = run(s, s + 1, batch_invariant);
      const auto first = together.out.begin() + t * kHeads * kDim;
      EXPECT_EQ(alone.out, std::vector<float>(first, first + alone.out.size())) << s;
      EXPECT_EQ(alone.state[0], together.state[s]) << s;
    }
  }
}

TEST_P(DeltaRuleInChunks, BatchInvariantBitsDoNotDependOnStep) {
  const Results whole = run(0, 1, true);
  // The same tokens in steps of 1, 20 and the rest.
  GatedDeltaShape shape{2, kHeads, kDim, kDim, 2, 0};
  shape.batch_invariant = true;
  const int64_t tokens = kCounts[0];
  const Matrix qkv = matrix({qkv_.begin(), qkv_.begin() + tokens * kCols}, tokens, kCols),
               ba = matrix({ba_.begin(), ba_.begin() + tokens * 2 * kHeads}, tokens, 2 * kHeads),
               out = blank(tokens, kHeads * kDim);
  const float *const a_log = upload(a_log_), *const dt_bias = upload(dt_bias_);
  std::byte* before = state(before_[0]);
  int64_t at = 0;
  for (const int64_t count : {int64_t{1}, int64_t{20}, tokens - 21}) {
    std::byte* const after = state(std::vector<float>(kSize, 7));
    expect_done(ops().gated_delta(qkv.slice(at, count), ba.slice(at, count), a_log, dt_bias, shape,
                                  batch({count}, {before, after}), out.slice(at, count), nullptr,
                                  {}));
    before = after, at += count;
  }
  EXPECT_EQ(floats(out), whole.out);
  EXPECT_EQ(download(reinterpret_cast<const float*>(before), kSize), whole.state[0]);
}

MORACLE_ON_EVERY_DEVICE(RecurrentOps);
MORACLE_ON_EVERY_DEVICE(DeltaRuleInChunks);

}  // namespace
}  // namespace moracle::recurrent_ops_test
