// Tests gates, short convolutions and the gated delta rule on every device that has them, against
// computation in double.
#include "base/text.h"
#include "kernels/device_ops.h"

namespace moracle::recurrent_ops_test {
namespace {

class RecurrentOps : public testing::DeviceOpsTest {
 protected:
  void SetUp() override {
    DeviceOpsTest::SetUp();
    if (!IsSkipped() && !has_operation(device_->platform(), Operation::kGatedDelta))
      GTEST_SKIP() << "this device has no recurrent operations";
  }

  /// A step of sequences of `counts` tokens. `before` and `after` are their states.
  Batch batch(const std::vector<int64_t>& counts, const std::vector<std::byte*>& states) {
    std::vector<int32_t> sequences, first = {0};
    for (size_t s = 0; s < counts.size(); ++s) {
      sequences.insert(sequences.end(), counts[s], static_cast<int32_t>(s));
      first.push_back(static_cast<int32_t>(sequences.size()));
    }
    Batch step;
    step.num_tokens = static_cast<int64_t>(sequences.size());
    step.num_sequences = static_cast<int64_t>(counts.size());
    step.sequences = upload(sequences);
    step.first_token = upload(first);
    step.states = upload(states);
    return step;
  }
  std::byte* state(const std::vector<float>& values) {
    return reinterpret_cast<std::byte*>(upload(values));
  }
  std::vector<float> row(const std::vector<float>& all, int64_t cols, int64_t r) {
    return {all.begin() + r * cols, all.begin() + (r + 1) * cols};
  }
};

TEST_P(RecurrentOps, GateMultipliesHeadsByFunctionOfOtherColumns) {
  const int64_t rows = 5, heads = 3, count = 7;
  const std::vector<float> x = normal(rows * heads * count), by = normal(rows * heads * 9, 3);
  for (const Gate function : {Gate::kIdentity, Gate::kSigmoid, Gate::kSilu}) {
    const Matrix to = matrix(x, rows, heads * count), from = matrix(by, rows, heads * 9);
    expect_done(
        ops().gate(to, count, columns(from, 2, heads * 9 - 2), 9, heads, count, function, {}));
    const std::vector<float> got = floats(to);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < count; ++c) {
          const double g = by[r * heads * 9 + h * 9 + 2 + c];
          const double sigmoid = 1 / (1 + std::exp(-g));
          const double factor = function == Gate::kIdentity ? g
                                : function == Gate::kSilu   ? g * sigmoid
                                                            : sigmoid;
          const int64_t i = r * heads * count + h * count + c;
          ASSERT_NEAR(got[i], x[i] * factor, 1e-6 * (std::fabs(x[i] * factor) + 1e-3)) << i;
        }
      }
    }
  }
}

// The first sequence starts, the second continues, the third has no tokens in this step.
TEST_P(RecurrentOps, ConvolutionReadsRowsOfEarlierSteps) {
  for (const auto& [cols, kernel] : {std::pair<int64_t, int64_t>{21, 4}, {64, 3}, {5, 2}}) {
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
            ASSERT_NEAR(got[r * cols + c], want, 3e-6) << r << ", " << c;
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
                                  upload(a_log), upload(dt_bias), shape, step, out, {}));
    const std::vector<float> got = floats(out);
    Rule begun{shape, std::vector<double>(size, 0.0)},
        continued{shape, {before.begin(), before.end()}};
    for (int64_t t = 0; t < tokens; ++t) {
      Rule& rule = t < 3 ? begun : continued;
      const std::vector<double> want =
          rule.step(&qkv[t * cols], &ba[t * gates], a_log.data(), dt_bias.data());
      for (int64_t c = 0; c < value_cols; ++c)
        ASSERT_NEAR(got[t * value_cols + c], want[c], 2e-5) << t << ", " << c;
    }
    const auto after = download(reinterpret_cast<float*>(second), size);
    for (int64_t i = 0; i < size; ++i) ASSERT_NEAR(after[i], continued.state[i], 2e-5) << i;
  }
}

MORACLE_ON_EVERY_DEVICE(RecurrentOps);

}  // namespace
}  // namespace moracle::recurrent_ops_test
