// Online softmax in registers (Milakov and Gimelshein, "Online normalizer calculation for softmax",
// 2018). Scores are exponents of 2.
#pragma once

#include "kernels/cuda/attention/heads.cuh"

namespace moracle::cuda {

/// The reference is the running maximum. It may lag behind the largest score by this much: most
/// steps then rescale nothing, and weights stay below 2^8.
constexpr float kReferenceSlack = 8;

/// State of the two rows of scores that a lane holds. Lanes whose numbers differ in the bits
/// [kFirst, kEnd) share a row: kFirst and kEnd are powers of two.
template <int kFirst, int kEnd>
struct OnlineSoftmax {
  float reference[2] = {kMinusInfinity, kMinusInfinity};  // weights are 2^(score - reference)
  float sum[2] = {};                                      // of the weights of this lane

  /// The maximum over the lanes that share a row.
  __device__ static float row_max(float most) {
#pragma unroll
    for (int lanes = kFirst; lanes < kEnd; lanes *= 2)
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, lanes));
    return most;
  }
  /// Raises the reference of a row to its scores. `most`: the largest score of this lane. Returns
  /// the factor that rescales earlier sums.
  __device__ __forceinline__ float raise(int row, float most) {
    most = fmaxf(row_max(most), reference[row]);
    const float shrink = most == kMinusInfinity ? 1.0f : exp2f(reference[row] - most);
    reference[row] = most;
    return shrink;
  }
  /// Weights are 2^(score - base). A row that has seen no position has no reference yet, and the
  /// weight 0.
  __device__ float base(int row) const {
    return reference[row] == kMinusInfinity ? 0.0f : reference[row];
  }
  /// Sums over the lanes that share a row.
  __device__ void finish() {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int lanes = kFirst; lanes < kEnd; lanes *= 2)
        sum[row] += __shfl_xor_sync(kAllLanes, sum[row], lanes);
    }
  }
};
using HeadSoftmax = OnlineSoftmax<4, 32>;  // rows are columns of an mma result
using QuerySoftmax = OnlineSoftmax<1, 4>;  // rows are rows of an mma result

}  // namespace moracle::cuda
