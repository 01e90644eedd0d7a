// The expected output with a running error bound: every quantity is a value in double and the most
// that an f32 implementation of the same scheme may differ from it.
//
//   sum of K products in f32, any order   |error| <= (K + 4) u Σ|x w|,     u = 2^-24
//   exact integer sums, scaled in f32     |error| <= 4 u |y|
//   rounding to codes                     a code flips if the value is within its error of a tie:
//                                         then one whole step more
#include <algorithm>
#include <cmath>

#include "moe/conformance.h"
#include "quant/activation.h"
#include "quant/codec.h"

namespace moracle::conformance {
namespace {

constexpr double kU = 0x1p-24;

struct Vector {
  std::vector<double> value, error;
  explicit Vector(size_t size) : value(size), error(size) {}
};

// What a kernel sees of `x` under the activation key, as numbers: codes times scale.
void quantize(Vector& x) {
  std::vector<float> floats(x.value.begin(), x.value.end());
  std::vector<int8_t> codes(floats.size());
  const double scale = quantize_int8_token(floats.data(), static_cast<int64_t>(floats.size()), codes.data());
  double scale_error = 0;
  for (double error : x.error) scale_error = std::max(scale_error, error / 127);
  for (size_t i = 0; i < codes.size(); ++i) {
    const double exact = x.value[i] / scale;
    const double doubt = (x.error[i] + std::fabs(exact) * scale_error) / scale + 4 * kU * std::fabs(exact);
    const double to_tie = std::fabs(exact - std::floor(exact) - 0.5);
    const double step = to_tie <= doubt ? scale : 0;
    x.value[i] = codes[i] * scale;
    x.error[i] = step + std::abs(codes[i]) * scale_error;
  }
}

Vector multiply(const CanonicalMatrix& w, const Vector& x, bool integers) {
  Vector y(w.n);
  std::vector<double> row(w.k);
  for (int64_t n = 0; n < w.n; ++n) {
    dequantize_row(w, n, row.data());
    double sum = 0, magnitude = 0, carried = 0;
    for (int64_t k = 0; k < w.k; ++k) {
      sum += x.value[k] * row[k];
      magnitude += std::fabs(x.value[k] * row[k]);
      carried += x.error[k] * std::fabs(row[k]);
    }
    if (!w.bias.empty()) sum += w.bias[n];
    y.value[n] = sum;
    const double own = integers ? 4 * kU * std::fabs(sum) : (static_cast<double>(w.k) + 4) * kU * magnitude;
    y.error[n] = carried + own + 2 * kU * (w.bias.empty() ? 0 : std::fabs(w.bias[n]) + std::fabs(sum));
  }
  return y;
}

Vector activate(const Vector& gate_up) {
  const size_t size = gate_up.value.size() / 2;
  Vector h(size);
  for (size_t i = 0; i < size; ++i) {
    const double g = gate_up.value[i], u = gate_up.value[size + i];
    const double silu = g / (1 + std::exp(-g));
    h.value[i] = silu * u;
    // |silu'| < 1.1; exp, division and product in f32 add a few roundings.
    h.error[i] = 1.1 * gate_up.error[i] * (std::fabs(u) + gate_up.error[size + i]) +
                 std::fabs(silu) * gate_up.error[size + i] + 8 * kU * std::fabs(h.value[i]);
  }
  return h;
}

}  // namespace

Expected expected(const LayerSpec& spec, const DescribedWeights& weights, std::span<const float> hidden,
                  std::span<const int32_t> topk_ids, std::span<const float> topk_weights) {
  const auto num_tokens = static_cast<int64_t>(hidden.size()) / spec.hidden_size;
  Expected result{std::vector<double>(hidden.size()), std::vector<double>(hidden.size())};
  const bool integers = spec.scheme.activation.has_value();
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    const CanonicalMatrix w13 = *weights.w13.expert(e), w2 = *weights.w2.expert(e);
    for (int64_t slot = 0; slot < num_tokens * spec.top_k; ++slot) {
      if (topk_ids[slot] != e) continue;
      const int64_t token = slot / spec.top_k;
      Vector x(spec.hidden_size);
      for (int64_t i = 0; i < spec.hidden_size; ++i) x.value[i] = hidden[token * spec.hidden_size + i];
      if (integers) quantize(x);
      Vector h = activate(multiply(w13, x, integers));
      if (integers) quantize(h);
      const Vector y = multiply(w2, h, integers);
      for (int64_t i = 0; i < spec.hidden_size; ++i) {
        const double weight = topk_weights[slot];
        const double value = weight * y.value[i];
        result.output[token * spec.hidden_size + i] += value;
        result.bound[token * spec.hidden_size + i] +=
            std::fabs(weight) * y.error[i] + (static_cast<double>(spec.top_k) + 2) * kU * std::fabs(value);
      }
    }
  }
  return result;
}

}  // namespace moracle::conformance
