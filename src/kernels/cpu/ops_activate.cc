// The nonlinearities between the experts' GEMMs, in f32. The formulas are those of `Activation`
// (moracle/checkpoint.h); both gelus are written so that nothing cancels where g is negative:
// Φ(g) = erfc(-g/√2)/2, and (1 + tanh z)/2 = σ(2z).
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "kernels/cpu/cpu_ops.h"

namespace moracle {
namespace {

float silu(float x, float sharpness = 1) {
  return x / (1.0f + std::exp(-sharpness * x));
}
float gelu(float x) {
  return 0.5f * x * std::erfc(x * -0.70710678f);
}
float gelu_tanh(float x) {
  constexpr float kTwice = 2 * 0.79788456f;  // 2 √(2/π)
  return x / (1.0f + std::exp(-kTwice * (x + 0.044715f * x * x * x)));
}
float relu2(float x) {
  return std::max(x, 0.0f) * std::max(x, 0.0f);
}

// out[i] = f(gate[i], up[i]), or f(up[i], -) where there is no gate.
template <class Function>
void each(const float* gate, const float* up, int64_t count, float* out, Function f) {
  for (int64_t i = 0; i < count; ++i) out[i] = f(gate[i], up[i]);
}

void activate_row(const ActivationSpec& spec, const float* gate, const float* up, int64_t count,
                  float* out) {
  const float limit = spec.limit, alpha = spec.alpha, beta = spec.beta;
  auto clamped = [limit](float u) { return std::clamp(u, -limit, limit); };
  switch (spec.function) {
    case Activation::kSilu:
      if (limit > 0)
        return each(gate, up, count, out,
                    [&](float g, float u) { return silu(std::min(g, limit)) * clamped(u); });
      return each(gate, up, count, out, [](float g, float u) { return silu(g) * u; });
    case Activation::kGelu:
      return each(gate, up, count, out, [](float g, float u) { return gelu(g) * u; });
    case Activation::kGeluTanh:
      return each(gate, up, count, out, [](float g, float u) { return gelu_tanh(g) * u; });
    case Activation::kRelu2:
      return each(gate, up, count, out, [](float g, float u) { return relu2(g) * u; });
    case Activation::kSwigluOai:
      return each(gate, up, count, out, [&](float g, float u) {
        return silu(std::min(g, limit), alpha) * (clamped(u) + beta);
      });
    case Activation::kSwigluStep:
      return each(gate, up, count, out,
                  [&](float g, float u) { return std::min(silu(g), limit) * clamped(u); });
    case Activation::kSiluNoMul:
      return each(up, up, count, out, [](float u, float) { return silu(u); });
    case Activation::kGeluNoMul:
      return each(up, up, count, out, [](float u, float) { return gelu(u); });
    case Activation::kGeluTanhNoMul:
      return each(up, up, count, out, [](float u, float) { return gelu_tanh(u); });
    case Activation::kRelu2NoMul:
      return each(up, up, count, out, [](float u, float) { return relu2(u); });
  }
}

}  // namespace

Status CpuOps::activate(const ActivationSpec& activation, int64_t intermediate_size,
                        const Matrix& gate_up, const Matrix& out, Stream) {
  const bool needs_limit = activation.function == Activation::kSwigluOai ||
                           activation.function == Activation::kSwigluStep;
  if (!(activation.limit >= 0) || (needs_limit && activation.limit == 0)) {
    return Error{ErrorKind::kInvalidArgument, "", str("activation ", name(activation.function)),
                 "a limit above 0", str("it is ", activation.limit)};
  }
  const int64_t gates = is_gated(activation.function) ? intermediate_size : 0;
  pool_.split(gate_up.rows, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      const float* const gate = f32_row(gate_up, r);
      float* const to = f32_row(out, r);
      activate_row(activation, gate, gate + gates, intermediate_size, to);
      std::fill(to + intermediate_size, to + out.cols, 0.0f);
    }
  });
  return {};
}

}  // namespace moracle
