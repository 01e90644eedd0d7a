// RoPE. Angles are f32 products, as in the models' training. Their sines and cosines are computed
// in double, correct to the last place of f32.
#pragma once

#include "kernels/cpu/simd/vector.h"

namespace moracle::cpu {
namespace {

/// Cosines and sines of position · frequencies[i], times `factor`. Angles up to 2^20 radians.
void cos_sin(float position, const float* frequencies, int64_t count, float factor, float* cosines,
             float* sines) {
  using Longs = int64_t __attribute__((vector_size(4 * kLanes)));
  constexpr double kRound = 6755399441055744.0;  // 1.5 · 2^52
  // π/2 in two parts. The first has 33 bits, so its product with a number below 2^20 is exact.
  constexpr double kQuarter = 1.57079632673412561417e+00, kRest = 6.07710050650619224932e-11;
  for (int64_t at = 0; at < count; at += kHalf) {
    const int64_t here = count - at < kHalf ? count - at : kHalf;
    Half angles{};
    __builtin_memcpy(&angles, frequencies + at, static_cast<size_t>(here) * sizeof(float));
    angles *= position;
    const Doubles angle = widen(angles);
    const Doubles shifted = angle * 0.63661977236758134308 + kRound;
    const Doubles n = shifted - kRound;
    const Longs quadrant = as<Longs>(shifted);
    const Doubles r = (angle - n * kQuarter) - n * kRest, z = r * r;
    // Taylor series on ±π/4: the first omitted terms are below 2^-31 and 2^-35.
    const Doubles sine =
        r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880))));
    const Doubles last = 1.0 / 720 - z * (1.0 / 40320 - z * (1.0 / 3628800));
    const Doubles cosine = 1.0 - z * (0.5 - z * (1.0 / 24 - z * last));
    const Longs odd = -(quadrant & 1);  // all bits set where sine and cosine swap
    const Longs one = (as<Longs>(sine) & ~odd) | (as<Longs>(cosine) & odd);
    const Longs other = (as<Longs>(cosine) & ~odd) | (as<Longs>(sine) & odd);
    const Doubles s = as<Doubles>(one ^ ((quadrant & 2) << 62));
    const Doubles c = as<Doubles>(other ^ (((quadrant + 1) & 2) << 62));
    const Half to_c = narrow(c) * factor;
    const Half to_s = narrow(s) * factor;
    __builtin_memcpy(cosines + at, &to_c, static_cast<size_t>(here) * sizeof(float));
    __builtin_memcpy(sines + at, &to_s, static_cast<size_t>(here) * sizeof(float));
  }
}

/// x, y = x·c - y·s, y·c + x·s, for vectors of pairs.
void rotate_halves(float* first, float* second, const float* cosines, const float* sines,
                   int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec x = load(first + i), y = load(second + i), c = load(cosines + i), s = load(sines + i);
    store(first + i, x * c - y * s);
    store(second + i, y * c + x * s);
  }
  const int64_t left = count - i;
  if (left == 0) return;
  const Vec x = load_first(first + i, left), y = load_first(second + i, left);
  const Vec c = load_first(cosines + i, left), s = load_first(sines + i, left);
  store_first(first + i, x * c - y * s, left);
  store_first(second + i, y * c + x * s, left);
}

/// rotate_halves for pairs of neighbours.
void rotate_neighbours(float* x, const float* cosines, const float* sines, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cosines[i] - b * sines[i];
    x[2 * i + 1] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace
}  // namespace moracle::cpu
