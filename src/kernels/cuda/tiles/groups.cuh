// Used by every kernel on layout mma16: a lane's position in a tile, the groups of columns that
// share a scale, and the fused activation.
#pragma once

#include "kernels/cuda/tiles/arguments.h"

namespace moracle::cuda {

__device__ inline int lane_row() {
  return static_cast<int>(threadIdx.x % 32 / 4);
}
__device__ inline int lane_col() {
  return static_cast<int>(threadIdx.x % 4);
}

/// Returns the group of a k-block. Exact below 2^16 k-blocks.
__device__ inline int group_of(const ScaleGroups& groups, int block) {
  if (groups.inverse == 0) return block;
  return static_cast<int>(__umulhi(static_cast<unsigned>(block), groups.inverse));
}

/// Comparisons propagate NaN. The result becomes bf16, so approximate the quotient and the
/// exponential.
__device__ inline float activated(const GemmArgs& a, float gate, float up) {
  gate = gate > a.limit ? a.limit : gate;
  up = up > a.limit ? a.limit : (up < -a.limit ? -a.limit : up);
  return __fdividef(gate, __expf(-a.sharpness * gate) + 1.0f) * (up + a.offset);
}

}  // namespace moracle::cuda
