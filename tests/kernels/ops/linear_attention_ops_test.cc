// Tests Kimi Delta Attention and lightning attention on every device against computation in double:
// token by token, in chunks, from a state, and with decays that become 0.
#include <cmath>
#include <numeric>

#include "base/text.h"
#include "kernels/ops/recurrent_step.h"

namespace moracle::linear_attention_ops_test {
namespace {

double silu(double x) {
  return x / (1 + std::exp(-x));
}

struct Case {
  int64_t heads, dim;
  std::vector<int64_t> counts;  // tokens of each sequence; the second one begins without a state
  float lower_bound = 0;
  float shift = -2;  // of dt_bias: how slow the decays are
};

class LinearAttentionOps : public testing::RecurrentOpsTest {
 protected:
  struct Results {
    std::vector<float> out;                 // [tokens, heads * dim]
    std::vector<std::vector<float>> state;  // of each sequence
  };
  static int64_t tokens_of(const Case& c) {
    return std::accumulate(c.counts.begin(), c.counts.end(), int64_t{0});
  }
  /// The memory of states before and after a step: see Batch::states.
  std::vector<std::byte*> states_of(const Case& c, const std::vector<float>& before) {
    std::vector<std::byte*> states;
    for (size_t s = 0; s < c.counts.size(); ++s) {
      states.push_back(s == 1 ? nullptr : state(before));
      states.push_back(state(std::vector<float>(before.size(), 7)));
    }
    return states;
  }
  Results results(const Case& c, const Matrix& out, const std::vector<std::byte*>& states) {
    Results got{floats(out), {}};
    for (size_t s = 0; s < c.counts.size(); ++s) {
      got.state.push_back(
          download(reinterpret_cast<const float*>(states[2 * s + 1]), c.heads * c.dim * c.dim));
    }
    return got;
  }
  /// Compares with step(token, head, state) → outputs of the head, which updates the state.
  template <class Step>
  void expect_follows(const Case& c, const Results& got, const std::vector<float>& before,
                      const Step& step) {
    const int64_t size = c.dim * c.dim, channels = c.heads * c.dim;
    // A token's outputs are rounded to bf16 on a GPU.
    const double close = is_cpu() ? 1e-5 : 8e-3;
    for (size_t s = 0, first = 0; s < c.counts.size(); first += c.counts[s++]) {
      std::vector<double> state(before.size(), 0.0);
      if (s != 1) state.assign(before.begin(), before.end());
      double apart = 0, whole = 0;
      for (int64_t t = 0; t < c.counts[s]; ++t) {
        const auto token = static_cast<int64_t>(first) + t;
        for (int64_t head = 0; head < c.heads; ++head) {
          const std::vector<double> want = step(token, head, &state[head * size]);
          for (int64_t i = 0; i < c.dim; ++i) {
            apart += std::pow(got.out[token * channels + head * c.dim + i] - want[i], 2);
            whole += want[i] * want[i];
          }
        }
      }
      if (c.counts[s] == 0) {
        EXPECT_EQ(got.state[s], std::vector<float>(before.size(), 7));
        continue;
      }
      EXPECT_LT(std::sqrt(apart), close * std::sqrt(whole)) << "sequence " << s;
      double state_apart = 0, state_whole = 0;
      for (size_t i = 0; i < state.size(); ++i) {
        state_apart += std::pow(got.state[s][i] - state[i], 2);
        state_whole += state[i] * state[i];
      }
      EXPECT_LT(std::sqrt(state_apart), close * std::sqrt(state_whole)) << "sequence " << s;
    }
  }
};

const Case kCases[] = {
    {2, 6, {3, 5}},        {3, 16, {5, 2, 11}},      {2, 32, {40, 7, 0, 9}, -5},
    {2, 128, {75, 33, 8}}, {2, 128, {70, 9}, -5, 1}, {1, 64, {64, 40}, 0, 40}};  // decays of 0

// ---- Kimi Delta Attention ----

class KimiDeltaOps : public LinearAttentionOps {
 protected:
  struct Inputs {
    std::vector<float> qkv, gates, a_log, dt_bias, before;
    int64_t cols = 0, gate_cols = 0, first_decay = 0;
  };
  Inputs inputs(const Case& c) {
    const int64_t tokens = tokens_of(c), channels = c.heads * c.dim;
    Inputs in;
    in.cols = 3 * channels, in.first_decay = 64, in.gate_cols = 64 + channels;
    in.qkv = rounded(normal(tokens * in.cols)), in.gates = rounded(normal(tokens * in.gate_cols));
    in.a_log = normal(c.heads), in.dt_bias = normal(channels);
    for (float& x : in.dt_bias) x += c.shift;
    in.before = normal(channels * c.dim, 0.3f);
    return in;
  }
  GatedDeltaShape shape(const Case& c, const Inputs& in, bool batch_invariant) {
    GatedDeltaShape shape{c.heads, c.heads, c.dim, c.dim, in.first_decay, 0};
    shape.by_channel = true;
    shape.lower_bound = c.lower_bound;
    shape.batch_invariant = batch_invariant;
    return shape;
  }
  static std::vector<double> step(const Case& c, const Inputs& in, int64_t token, int64_t head,
                                  double* s) {
    const int64_t channels = c.heads * c.dim, dim = c.dim;
    const auto unit = [&](const float* x) {
      double squares = 1e-6;
      for (int64_t i = 0; i < dim; ++i) squares += double{x[i]} * x[i];
      std::vector<double> y(x, x + dim);
      for (double& value : y) value /= std::sqrt(squares);
      return y;
    };
    const float* const row = &in.qkv[token * in.cols];
    const std::vector<double> q = unit(row + head * dim), k = unit(row + channels + head * dim);
    const float *const v = row + 2 * channels + head * dim, *const gates =
                                                                &in.gates[token * in.gate_cols];
    const double strength = 1 / (1 + std::exp(-double{gates[head]}));
    const double rate = std::exp(double{in.a_log[head]});
    for (int64_t i = 0; i < dim; ++i) {
      const double x = double{gates[in.first_decay + head * dim + i]} + in.dt_bias[head * dim + i];
      const double decay =
          std::exp(c.lower_bound != 0 ? c.lower_bound / (1 + std::exp(-rate * x))
                                      : -rate * (x > 30 ? x : std::log1p(std::exp(x))));
      for (int64_t j = 0; j < dim; ++j) s[i * dim + j] *= decay;
    }
    std::vector<double> out(dim, 0.0);
    for (int64_t j = 0; j < dim; ++j) {
      double known = 0;
      for (int64_t i = 0; i < dim; ++i) known += k[i] * s[i * dim + j];
      for (int64_t i = 0; i < dim; ++i)
        out[j] += q[i] * (s[i * dim + j] += k[i] * strength * (v[j] - known));
      out[j] /= std::sqrt(static_cast<double>(dim));
    }
    return out;
  }
};

TEST_P(KimiDeltaOps, FollowsTheRuleFromTheState) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(str(c.heads, " heads of ", c.dim, ", bound ", c.lower_bound));
    const Inputs in = inputs(c);
    const int64_t tokens = tokens_of(c);
    for (const bool batch_invariant : {false, true}) {
      const std::vector<std::byte*> states = states_of(c, in.before);
      const Matrix out = blank(tokens, c.heads * c.dim);
      expect_done(ops().gated_delta(matrix(in.qkv, tokens, in.cols),
                                    matrix(in.gates, tokens, in.gate_cols), upload(in.a_log),
                                    upload(in.dt_bias), shape(c, in, batch_invariant),
                                    batch(c.counts, states), out, nullptr, {}));
      expect_follows(
          c, results(c, out, states), in.before,
          [&](int64_t token, int64_t head, double* s) { return step(c, in, token, head, s); });
    }
  }
}

TEST_P(KimiDeltaOps, BatchInvariantBitsDoNotDependOnStep) {
  const Case c{2, 128, {40}};
  const Inputs in = inputs(c);
  const Matrix qkv = matrix(in.qkv, 40, in.cols), gates = matrix(in.gates, 40, in.gate_cols);
  const auto run = [&](const std::vector<int64_t>& steps) {
    const Matrix out = blank(40, c.heads * c.dim);
    std::byte* before = state(in.before);
    int64_t at = 0;
    for (const int64_t count : steps) {
      std::byte* const after = state(std::vector<float>(in.before.size(), 7));
      expect_done(ops().gated_delta(
          qkv.slice(at, count), gates.slice(at, count), upload(in.a_log), upload(in.dt_bias),
          shape(c, in, true), batch({count}, {before, after}), out.slice(at, count), nullptr, {}));
      before = after, at += count;
    }
    return floats(out);
  };
  EXPECT_EQ(run({40}), run({1, 20, 19}));
}

// ---- lightning attention ----

class LightningOps : public LinearAttentionOps {};

TEST_P(LightningOps, FollowsTheRuleFromTheState) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(str(c.heads, " heads of ", c.dim));
    const int64_t tokens = tokens_of(c), channels = c.heads * c.dim, cols = 3 * channels;
    const std::vector<float> qkv = rounded(normal(tokens * cols)),
                             before = normal(channels * c.dim, 0.3f);
    std::vector<float> decays;
    for (int64_t head = 0; head < c.heads; ++head)
      decays.push_back(c.shift > 10 ? 0.0f
                                    : std::exp(-std::exp2(-4.0f * static_cast<float>(head))));
    for (const bool batch_invariant : {false, true}) {
      const std::vector<std::byte*> states = states_of(c, before);
      const Matrix out = blank(tokens, channels);
      expect_done(ops().lightning(matrix(qkv, tokens, cols), upload(decays),
                                  {c.heads, c.dim, 0, batch_invariant}, batch(c.counts, states),
                                  out, {}));
      expect_follows(c, results(c, out, states), before,
                     [&](int64_t token, int64_t head, double* s) {
                       const float* const row = &qkv[token * cols + 3 * head * c.dim];
                       std::vector<double> sums(c.dim, 0.0), values;
                       for (int64_t j = 0; j < c.dim; ++j)
                         values.push_back(silu(row[2 * c.dim + j]));
                       for (int64_t i = 0; i < c.dim; ++i) {
                         const double q = silu(row[i]), k = silu(row[c.dim + i]);
                         for (int64_t j = 0; j < c.dim; ++j) {
                           double& kept = s[i * c.dim + j];
                           kept = decays[head] * kept + k * values[j];
                           sums[j] += q * kept;
                         }
                       }
                       return sums;
                     });
    }
  }
}

// ---- experts that return their input ----

class IdentityExpertOps : public testing::DeviceOpsTest {};

TEST_P(IdentityExpertOps, ChoicesBecomeNoneAndTheirWeightsASum) {
  const int64_t tokens = 700, top_k = 3, num_experts = 5;
  std::vector<int32_t> ids, want_ids;
  std::vector<float> weights, want(tokens, 0.0f);
  for (int64_t i = 0; i < tokens * top_k; ++i) {
    ids.push_back(static_cast<int32_t>(i * 7 % 9));
    weights.push_back(static_cast<float>(i % 16) / 8);
    want_ids.push_back(ids.back() < num_experts ? ids.back() : -1);
    if (ids.back() >= num_experts) want[i / top_k] += weights.back();
  }
  int32_t* const own = upload(ids);
  float* const sums = upload(std::vector<float>(tokens, 7.0f));
  expect_done(ops().take_identity(own, upload(weights), tokens, top_k, num_experts, sums, {}));
  EXPECT_EQ(download(own, tokens * top_k), want_ids);
  EXPECT_EQ(download(sums, tokens), want);
}

MORACLE_ON_EVERY_DEVICE(KimiDeltaOps);
MORACLE_ON_EVERY_DEVICE(LightningOps);
MORACLE_ON_EVERY_DEVICE(IdentityExpertOps);

}  // namespace
}  // namespace moracle::linear_attention_ops_test
