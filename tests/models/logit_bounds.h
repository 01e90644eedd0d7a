// How far the logits of two runs of a model may be apart. The bound follows from the rows that the
// plans of its layers name, never from the machine at hand.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "moracle/model.h"

namespace moracle::testing {

/// The error of a model's logits as a share of their norm: root mean square, estimated.
/// A matrix rounds its inputs to MatrixPlan::product_bits bits, or to the 8 bits of bf16 where
/// activations are stored so, which loses 0.42 · 2^-bits of a value in root mean square: 2^-bits /
/// √3 of a power of two, 0.73 of that on average over the values up to the next one. It sums k
/// products in f32, which loses √k times as much as one rounding to 24 bits. Errors of matrices are
/// independent, so their squares add up. Products have at least `bits` bits: 24 stands for a
/// computation in f32 elsewhere.
inline double logit_error(std::span<const Choice> choices, int bits = 0) {
  const auto square = [](int kept) { return std::pow(0.42 * std::ldexp(1, -kept), 2); };
  double squares = 0;
  for (const Choice& choice : choices) {
    const auto layers = static_cast<double>(std::max<size_t>(choice.layers.size(), 1));
    const int stored = choice.selection.plan->activation_dtype == DType::kF32 ? 24 : 8;
    for (const MatrixPlan& matrix : choice.selection.plan->matrices)
      squares += layers * (square(std::max(bits, std::min(matrix.product_bits, stored))) +
                           static_cast<double>(matrix.shape.k) * square(24));
  }
  return std::sqrt(squares);
}

/// Between two runs: three times the errors of both. The largest difference from transformers, of
/// all architectures, rows and CPU features, is 0.52 of this, the median 0.2. Two runs on the same
/// row share most roundings: up to 0.31 in f32, 0.06 on cpu-amx.
inline double logit_bound(std::span<const Choice> one, std::span<const Choice> other) {
  return 3 * (logit_error(one) + logit_error(other));
}

/// Between two runs of a tiny model of tests/golden on rows with f32 products: the largest of the
/// bounds above.
inline constexpr double kCloseInF32 = 4e-6;

/// From a computation in f32 elsewhere. Activations of 8 bits get another code where their error
/// crosses a tie, with a probability of error / distance of the codes: 2^-3 of a value in e4m3, the
/// widest. Where one code in `num_tokens` tokens is expected to differ, later layers turn it into
/// many, whose errors are at most half that distance.
inline double logit_bound(std::span<const Choice> choices, int64_t num_tokens) {
  constexpr double kDistance = 0x1p-3;
  const double error = logit_error(choices) + logit_error(choices, 24);
  double codes = 0;
  for (const Choice& choice : choices) {
    const Plan& plan = *choice.selection.plan;
    if (!plan.layer.scheme.activation) continue;
    const auto layers = static_cast<double>(std::max<size_t>(choice.layers.size(), 1));
    for (const MatrixPlan& matrix : plan.matrices)
      codes += layers * static_cast<double>(matrix.shape.k * num_tokens);
  }
  return codes * error < kDistance ? 3 * error : kDistance / 2;
}

}  // namespace moracle::testing
