// Scales and minimums of a group of weights for GGUF's encoders: weighted least squares, from
// several first guesses.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace moracle {

/// Rounds to nearest, ties to even; |value| < 2^22. Loops over it vectorize without SSE4.1.
inline float nearest_integer(float value) {
  constexpr float kShift = 0x1.8p23f;
  return (value + kShift) - kShift;
}

/// Sum of term(i) for i < kCount, a multiple of 8. Eight partial sums let the loop vectorize, and
/// give the same bits on every CPU.
template <int kCount, class Term>
float sum_in_lanes(const Term& term) {
  float lanes[8] = {};
  for (int i = 0; i < kCount; i += 8) {
    for (int lane = 0; lane < 8; ++lane) lanes[lane] += term(i + lane);
  }
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/// The weight of each error: w = rms + |x|. An error of a large weight changes outputs more,
/// because large weights meet large activations more often than chance.
template <int kCount>
void importance_of(const float* x, float* w) {
  const float rms =
      std::sqrt(sum_in_lanes<kCount>([&](int i) { return x[i] * x[i]; }) / float{kCount});
  for (int i = 0; i < kCount; ++i) w[i] = rms + std::fabs(x[i]);
}

/// The value of the largest magnitude, with its sign.
template <int kCount>
float extreme_of(const float* x) {
  float extreme = 0;
  for (int i = 0; i < kCount; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  return extreme;
}

/// Below this magnitude a group is zero: its inverse overflows, and f16 cannot hold its scale.
inline constexpr float kLeastMagnitude = 1e-30f;

/// The code of x[i] for 1 / scale: the nearest integer in [low, -low - 1].
inline float symmetric_code(float x, float inverse, float low) {
  return nearest_integer(std::clamp(x * inverse, low, -low - 1));
}

/// The scale s of codes q in [low, -low - 1] that minimizes E = sum w (x - s q)^2. For given codes
/// dE/ds = 0 gives
///
///   s = sum w x q / sum w q^2,   E = sum w x^2 - (sum w x q)^2 / sum w q^2
///
/// The first guesses put the extreme near `low`, the end with one more code: 1 / s = (low + j / 10)
/// / extreme, |j| <= 9. Each guess determines codes, and these determine s. The s with the least E
/// is rounded and fitted once more.
template <int kCount>
float fit_scale(const float* x, const float* w, float low) {
  const float extreme = extreme_of<kCount>(x);
  if (std::fabs(extreme) < kLeastMagnitude) return 0;
  float best = 0, most = 0;
  const auto try_inverse = [&](float inverse) {
    float q[kCount];
    for (int i = 0; i < kCount; ++i) q[i] = symmetric_code(x[i], inverse, low);
    const float xq = sum_in_lanes<kCount>([&](int i) { return w[i] * x[i] * q[i]; });
    const float qq = sum_in_lanes<kCount>([&](int i) { return w[i] * q[i] * q[i]; });
    if (!(qq > 0) || !(xq * xq > most * qq)) return;
    most = xq * xq / qq;
    best = xq / qq;
  };
  for (int j = -9; j <= 9; ++j) try_inverse((low + 0.1f * static_cast<float>(j)) / extreme);
  if (best != 0) try_inverse(1 / best);
  return best;
}

/// value = scale * code - minimum
struct ScaleAndMinimum {
  float scale = 0, minimum = 0;
};

/// The code of x: the nearest integer in [0, highest].
inline float shifted_code(float x, float minimum, float inverse, float highest) {
  return nearest_integer(std::clamp((x + minimum) * inverse, 0.0f, highest));
}

/// Scale s and minimum m >= 0 of codes q in [0, highest] that minimize E = sum w (s q - m - x)^2.
/// For given codes dE/ds = dE/dm = 0 are two linear equations; with W = sum w, Q = sum w q, R = sum
/// w q^2, X = sum w x and Y = sum w x q
///
///   s = (W Y - X Q) / (W R - Q^2),   m = (Q Y - R X) / (W R - Q^2)
///
/// Where m would be negative, m = 0 and s = Y / R. The first guesses spread the range from min(x,
/// 0) to max(x) over highest + j / 10 steps, |j| <= 10.
template <int kCount>
ScaleAndMinimum fit_scale_and_minimum(const float* x, const float* w, float highest) {
  float low = 0, high = x[0];
  for (int i = 0; i < kCount; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  if (high - low < kLeastMagnitude) return {0, -low};
  const float all = sum_in_lanes<kCount>([&](int i) { return w[i]; });
  const float wx = sum_in_lanes<kCount>([&](int i) { return w[i] * x[i]; });
  ScaleAndMinimum best;
  float least = -1;
  const auto try_codes = [&](float minimum, float inverse) {
    float q[kCount];
    for (int i = 0; i < kCount; ++i) q[i] = shifted_code(x[i], minimum, inverse, highest);
    const float wq = sum_in_lanes<kCount>([&](int i) { return w[i] * q[i]; });
    const float wqq = sum_in_lanes<kCount>([&](int i) { return w[i] * q[i] * q[i]; });
    const float wxq = sum_in_lanes<kCount>([&](int i) { return w[i] * x[i] * q[i]; });
    const float determinant = all * wqq - wq * wq;
    if (!(determinant > 0)) return;
    ScaleAndMinimum fit = {(all * wxq - wx * wq) / determinant,
                           (wq * wxq - wqq * wx) / determinant};
    if (fit.minimum < 0) fit = {wxq / wqq, 0};
    if (!(fit.scale > 0)) return;
    const float error = sum_in_lanes<kCount>([&](int i) {
      const float away = fit.scale * q[i] - fit.minimum - x[i];
      return w[i] * away * away;
    });
    if (least >= 0 && error >= least) return;
    least = error;
    best = fit;
  };
  for (int j = -10; j <= 10; ++j)
    try_codes(-low, (highest + 0.1f * static_cast<float>(j)) / (high - low));
  if (least < 0) return {(high - low) / highest, -low};
  try_codes(best.minimum, 1 / best.scale);
  return best;
}

/// 1 / scale, or 0 for a scale without an inverse: all codes are then those of 0.
inline float inverse_or_zero(float scale) {
  return std::fabs(scale) < kLeastMagnitude ? 0 : 1 / scale;
}

}  // namespace moracle
