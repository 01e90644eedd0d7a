// When the reference backends of GPUs multiply codes as integers.
#pragma once

#include "moracle/layer.h"
#include "moracle/quant.h"

namespace moracle {

/// True if weight and activation codes are integers (or halves of integers), in groups of
/// neighbouring columns without minimums: each group's sum is then exact.
inline bool sums_integers(const MatrixShape& shape, const Scheme& scheme) {
  const DType weight = shape.key.dtype;
  return scheme.activation && scheme.activation->dtype == DType::kI8 && !shape.group_index &&
         !shape.key.minimums &&
         (weight == DType::kI8 || weight == DType::kI4 || weight == DType::kF4E2M1);
}

}  // namespace moracle
