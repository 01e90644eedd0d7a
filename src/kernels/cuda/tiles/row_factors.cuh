// Factors of rows of weights, which scale the sums of their outputs.
#pragma once

#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

/// The factors of an expert, by row.
__device__ inline const float* row_factors(const GemmArgs& a, int expert) {
  return reinterpret_cast<const float*>(a.base + expert * a.expert_bytes + a.row_factors_at);
}
/// Those of rows `row` and `row` + 1, an even number. Past the last panel they are any.
__device__ inline float2 two_row_factors(const GemmArgs& a, int expert, int row) {
  return reinterpret_cast<const float2*>(row_factors(a, expert))[min(row, a.panels * 16 - 2) / 2];
}

}  // namespace moracle::cuda
