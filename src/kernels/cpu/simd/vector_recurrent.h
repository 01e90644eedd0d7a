// Recurrent layers: gates, short convolutions and the delta rule.
#pragma once

#include "kernels/cpu/simd/vector_activate.h"

namespace moracle::cpu {
namespace {

/// x[i] *= σ(by[i])
void gate_sigmoid(const float* by, int64_t count, float* x) {
  each(by, x, count, x, [](Vec g, Vec y) { return y / (exp(-g) + 1.0f); });
}

/// out = bias + Σ_j weight[j] · rows[j], elementwise, j ascending; then x·σ(x) if `with_silu`.
void convolve(const float* const* rows, const float* weight, int64_t weight_stride, int64_t taps,
              int64_t count, const float* bias, bool with_silu, float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const bool whole = left >= kLanes;
    Vec sum{};
    if (bias != nullptr) sum = whole ? load(bias + i) : load_first(bias + i, left);
    for (int64_t j = 0; j < taps; ++j) {
      const float *const row = rows[j] + i, *const factor = weight + j * weight_stride + i;
      sum = whole ? multiply_add(load(factor), load(row), sum)
                  : multiply_add(load_first(factor, left), load_first(row, left), sum);
    }
    if (with_silu) sum = silu(sum);
    if (whole)
      store(out + i, sum);
    else
      store_first(out + i, sum, left);
  }
}

/// Columns [at, at + kWide vectors) of delta_step; `left` > 0: only `left` columns of one vector.
template <DeltaStep::Rule kRule, int kWide>
MORACLE_VECTOR_INLINE void delta_columns(const DeltaStep& step, int64_t at, int64_t left) {
  constexpr bool kByChannel = kRule == DeltaStep::Rule::kByChannel;
  const auto get = [left](const float* p) { return left > 0 ? load_first(p, left) : load(p); };
  const Vec decay = splat(step.decay);
  Vec known[kWide] = {}, change[kWide], sum[kWide] = {};
  for (int64_t i = 0; i < step.key_dim && kRule != DeltaStep::Rule::kSum; ++i) {
    const Vec k = splat(kByChannel ? step.k[i] * step.decays[i] : step.k[i]);
    const float* const row = step.before + i * step.value_dim + at;
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) known[v] = multiply_add(k, get(row + v * kLanes), known[v]);
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) {
    const Vec value = get(step.v + at + v * kLanes);
    if constexpr (kRule == DeltaStep::Rule::kSum)
      change[v] = value;
    else
      change[v] = (value - (kByChannel ? known[v] : decay * known[v])) * step.strength;
  }
  for (int64_t i = 0; i < step.key_dim; ++i) {
    const Vec k = splat(step.k[i]), q = splat(step.q[i]);
    const Vec keep = kByChannel ? splat(step.decays[i]) : decay;
    const int64_t row = i * step.value_dim + at;
    MORACLE_VECTOR_UNROLL
    for (int v = 0; v < kWide; ++v) {
      const Vec next = multiply_add(k, change[v], keep * get(step.before + row + v * kLanes));
      sum[v] = multiply_add(q, next, sum[v]);
      if (left > 0)
        store_first(step.after + row, next, left);
      else
        store(step.after + row + v * kLanes, next);
    }
  }
  MORACLE_VECTOR_UNROLL
  for (int v = 0; v < kWide; ++v) {
    if (left > 0)
      store_first(step.out + at, sum[v], left);
    else
      store(step.out + at + v * kLanes, sum[v]);
  }
}
template <DeltaStep::Rule kRule>
MORACLE_VECTOR_INLINE void delta_step_by(const DeltaStep& step) {
  constexpr int kWide = 4;
  int64_t at = 0;
  for (; at + kWide * kLanes <= step.value_dim; at += kWide * kLanes)
    delta_columns<kRule, kWide>(step, at, 0);
  for (; at + kLanes <= step.value_dim; at += kLanes) delta_columns<kRule, 1>(step, at, 0);
  if (at < step.value_dim) delta_columns<kRule, 1>(step, at, step.value_dim - at);
}
void delta_step(const DeltaStep& step) {
  using Rule = DeltaStep::Rule;
  if (step.rule == Rule::kDelta) return delta_step_by<Rule::kDelta>(step);
  if (step.rule == Rule::kByChannel) return delta_step_by<Rule::kByChannel>(step);
  delta_step_by<Rule::kSum>(step);
}

/// log(1 + y) for y in [0, 1]: 2 artanh(s), s = y / (y + 2). The terms left out are below 2^-29.
MORACLE_VECTOR_INLINE Vec log_one_plus(Vec y) {
  constexpr float kTerms[] = {1,        1.0f / 3,  1.0f / 5,  1.0f / 7,
                              1.0f / 9, 1.0f / 11, 1.0f / 13, 1.0f / 15};
  const Vec s = y / (y + 2.0f);
  return (s + s) * polynomial(kTerms, s * s);
}
void delta_decays(const DeltaDecays& args) {
  const float rate = args.rate, bound = args.lower_bound;
  if (bound != 0) {
    return each(args.a, args.dt_bias, args.count, args.decays, [rate, bound](Vec a, Vec b) {
      return exp(splat(bound) / (exp((a + b) * -rate) + 1.0f));
    });
  }
  each(args.a, args.dt_bias, args.count, args.decays, [rate](Vec a, Vec b) {
    const Vec x = a + b, size = at_least(x, -x);
    return exp((at_least(x, Vec{}) + log_one_plus(exp(-size))) * -rate);
  });
}

void silu_of(const float* x, int64_t count, float* out) {
  each(x, x, count, out, [](Vec a, Vec) { return silu(a); });
}

}  // namespace
}  // namespace moracle::cpu
