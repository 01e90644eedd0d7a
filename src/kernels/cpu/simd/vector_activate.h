// The nonlinearities between the experts' GEMMs. The formulas are those of `Activation`
// (moracle/layer.h). Both gelus avoid cancellation where g is negative: Φ(-a) is exp(-a²/2)
// times a smooth function, and (1 + tanh z)/2 = σ(2z).
#pragma once

#include "kernels/cpu/simd/vector.h"
#include "kernels/cpu/simd/vector_ops.h"

namespace moracle::cpu {
namespace {

/// e^x. n = round(x / ln 2), e^x = 2^n · e^(x - n ln 2). The polynomial for (e^r - 1 - r) / r² on
/// ±ln(2)/2 is off by 2^-26.5 of e^r. 2^n is split into two factors, so that results reach
/// subnormals, 0 and infinity correctly.
MORACLE_VECTOR_INLINE Vec exp(Vec x) {
  constexpr float kRound = 12582912.0f;  // 1.5 · 2^23: adding it leaves the integer in the low bits
  x = at_least(at_most(x, splat(89.0f)), splat(-104.0f));
  const Vec shifted = multiply_add(x, splat(1.44269504f), splat(kRound));
  const Vec n = shifted - kRound;
  // ln 2 in two parts. The first has so few bits that its product with n is exact.
  const Vec r = multiply_add(n, splat(2.12194440e-4f), multiply_add(n, splat(-0.693359375f), x));
  constexpr float kTerms[] = {0.5f, 0.16666577f, 0.041666465f, 0.0083631815f, 0.0013933652f};
  const Vec e = multiply_add(r * r, polynomial(kTerms, r), r) + 1.0f;
  const Ints whole = as<Ints>(shifted) - 0x4b400000;
  const Ints half = whole >> 1;
  const Vec first = as<Vec>((half + 127) << 23), second = as<Vec>((whole - half + 127) << 23);
  return e * first * second;
}

/// Φ(x) of the normal distribution. With t = (a - 3) / (a + 3), a = |x|, the polynomial is
/// Φ(-a) · e^(a²/2) · (a + 3), off by 2^-29. a² is computed exactly, in two parts. The small part
/// is at most 0.06, so its exponential needs three terms.
MORACLE_VECTOR_INLINE Vec normal_cdf(Vec x) {
  const Vec a = at_most(as<Vec>(as<Bits>(x) & 0x7fffffffu), splat(15.0f));
  const Vec high = as<Vec>(as<Bits>(a) & 0xfffff000u), low = a - high;
  const Vec rest = low * (a + high) * -0.5f;
  const Vec e = exp(high * high * -0.5f);
  constexpr float kTerms[] = {0.72908369f,    -0.50933199f,  0.23001770f,   -0.047262633f,
                              -0.010462485f,  0.0069689597f, 0.0010245711f, -0.0010317242f,
                              -2.4419980e-4f, 1.3062406e-4f, 5.3960326e-5f};
  const Vec inverse = 1.0f / (a + 3.0f);
  const Vec m = polynomial(kTerms, (a - 3.0f) * inverse) * inverse;
  constexpr float kRest[] = {1, 1, 0.5f, 1.0f / 6};
  const Vec tail = e * (m * polynomial(kRest, rest));
  return select(x < 0.0f, tail, 1.0f - tail);
}

MORACLE_VECTOR_INLINE Vec silu(Vec x, Vec sharpness) {
  return x / (exp(-sharpness * x) + 1.0f);
}
MORACLE_VECTOR_INLINE Vec silu(Vec x) {
  return x / (exp(-x) + 1.0f);
}
MORACLE_VECTOR_INLINE Vec gelu(Vec x) {
  return x * normal_cdf(x);
}
MORACLE_VECTOR_INLINE Vec gelu_tanh(Vec x) {
  constexpr float kTwice = 2 * 0.79788456f;  // 2 √(2/π)
  return x / (exp(-kTwice * (x + 0.044715f * x * x * x)) + 1.0f);
}
MORACLE_VECTOR_INLINE Vec relu2(Vec x) {
  const Vec positive = at_least(x, Vec{});
  return positive * positive;
}

template <class Function>
MORACLE_VECTOR_INLINE void each(const float* gate, const float* up, int64_t count, float* out,
                                Function f) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, f(load(gate + i), load(up + i)));
  const int64_t left = count - i;
  if (left > 0) store_first(out + i, f(load_first(gate + i, left), load_first(up + i, left)), left);
}

void activate(const ActivationSpec& spec, const float* gate, const float* up, int64_t count,
              float* out) {
  const Vec limit = splat(spec.limit), alpha = splat(spec.alpha), beta = splat(spec.beta);
  auto clamped = [&](Vec u) { return at_least(at_most(u, limit), -limit); };
  switch (spec.function) {
    case Activation::kSilu:
      if (spec.limit > 0)
        return each(gate, up, count, out,
                    [&](Vec g, Vec u) { return silu(at_most(g, limit)) * clamped(u); });
      return each(gate, up, count, out, [](Vec g, Vec u) { return silu(g) * u; });
    case Activation::kGelu:
      return each(gate, up, count, out, [](Vec g, Vec u) { return gelu(g) * u; });
    case Activation::kGeluTanh:
      return each(gate, up, count, out, [](Vec g, Vec u) { return gelu_tanh(g) * u; });
    case Activation::kRelu2:
      return each(gate, up, count, out, [](Vec g, Vec u) { return relu2(g) * u; });
    case Activation::kSwigluOai:
      return each(gate, up, count, out, [&](Vec g, Vec u) {
        return silu(at_most(g, limit), alpha) * (clamped(u) + beta);
      });
    case Activation::kSwigluStep:
      return each(gate, up, count, out,
                  [&](Vec g, Vec u) { return at_most(silu(g), limit) * clamped(u); });
    case Activation::kSiluNoMul:
      return each(up, up, count, out, [](Vec u, Vec) { return silu(u); });
    case Activation::kGeluNoMul:
      return each(up, up, count, out, [](Vec u, Vec) { return gelu(u); });
    case Activation::kGeluTanhNoMul:
      return each(up, up, count, out, [](Vec u, Vec) { return gelu_tanh(u); });
    case Activation::kRelu2NoMul:
      return each(up, up, count, out, [](Vec u, Vec) { return relu2(u); });
  }
}

}  // namespace
}  // namespace moracle::cpu
