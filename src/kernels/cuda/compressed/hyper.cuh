// The weights of hyper-connections, from projections of a token's streams.
#pragma once

#include "base/text.h"
#include "kernels/ops.h"

namespace moracle::cuda {

constexpr int kMostStreams = 16;
inline Status check_streams(int64_t num_streams) {
  if (num_streams <= kMostStreams) return {};
  return Error{ErrorKind::kUnsupported, "", "hyper-connections",
               str("at most ", kMostStreams, " streams on cuda"), str("there are ", num_streams)};
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

/// Divides by the sums of columns, then in turn by those of rows and columns (Sinkhorn and Knopp,
/// "Concerning Nonnegative Matrices and Doubly Stochastic Matrices", 1967). A lane has a line.
__device__ inline void normalize_in_turn(float* matrix, int64_t n, const HyperShape& shape) {
  const int64_t line = threadIdx.x % 32;
  const auto divide = [&](int64_t along, int64_t across) {
    if (line < n) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += matrix[line * across + i * along];
      for (int64_t i = 0; i < n; ++i) matrix[line * across + i * along] /= sum + shape.epsilon;
    }
    __syncwarp();
  };
  divide(n, 1);
  for (int64_t i = 1; i < shape.iterations; ++i) {
    divide(1, n);
    divide(n, 1);
  }
}

/// Turns the projections x of one token into its weights: n input weights, and with `mixes` n
/// output weights and the mixing matrix. Runs in one warp. Not inlined, so that callers for one
/// token and for several give the same bits.
__device__ __noinline__ inline void weigh_streams(float* x, float factor,
                                                  const HyperWeights& weights,
                                                  const HyperShape& shape, bool mixes) {
  const int64_t n = shape.num_streams, lane = threadIdx.x % 32;
  const float* const base = weights.base;
  if (lane < n) {
    x[lane] = sigmoid(x[lane] * factor * weights.scale[0] + base[lane]) + shape.epsilon;
    if (mixes) {
      float& output = x[n + lane];
      output = 2 * sigmoid(output * factor * weights.scale[1] + base[n + lane]);
      const int64_t first = (2 + lane) * n;  // of a row of the mixing matrix
      float largest = __int_as_float(0xff800000), sum = 0;
      for (int64_t i = first; i < first + n; ++i) {
        x[i] = x[i] * factor * weights.scale[2] + base[i];
        largest = fmaxf(largest, x[i]);
      }
      for (int64_t i = first; i < first + n; ++i) sum += x[i] = expf(x[i] - largest);
      for (int64_t i = first; i < first + n; ++i) x[i] = x[i] / sum + shape.epsilon;
    }
  }
  __syncwarp();
  if (mixes) normalize_in_turn(x + 2 * n, n, shape);
}

}  // namespace moracle::cuda
