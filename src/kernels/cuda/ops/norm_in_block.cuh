// x + y and its RMSNorm for few rows, repeated by each CTA in shared memory. Sums have the order of
// add_rms_norm's kernel.
#pragma once

#include "kernels/cuda/ops/norm_rows.cuh"
#include "kernels/cuda/ptx/global_memory.cuh"

namespace moracle::cuda {

/// Most rows of a NormInBlock, and most bytes of them: with the sums of dense_bf16.cuh, 48 KiB,
/// which every GPU has.
inline constexpr int kMostNormedRows = 8, kMostNormedBytes = 38 << 10;

/// Vectors from one row to the next. Neighbouring rows lie in different banks.
__host__ __device__ inline int normed_stride(int64_t cols) {
  return static_cast<int>(cols / 8) + 4;
}
inline constexpr int kNormWarps = kNormThreads / 32;
/// Shared memory of a NormInBlock beside the rows.
using NormSquares = float[kMostNormedRows][kNormWarps];
inline int64_t normed_bytes(int64_t rows, int64_t cols) {
  return rows * normed_stride(cols) * static_cast<int64_t>(sizeof(Eight));
}

/// kVectors: vectors of a row that a thread has, at most. A row is normalized by kNormThreads
/// threads.
template <int kThreads, int kVectors>
class NormInBlock {
 public:
  /// Loads the weights, or prefetches them. Reads nothing that earlier kernels wrote.
  __device__ explicit NormInBlock(const AddRmsNorm& a)
      : thread_(static_cast<int>(threadIdx.x) % kNormThreads),
        count_(static_cast<int>(a.x.cols / 8)) {
#pragma unroll
    for (int n = 0; n < kVectors; ++n) {
      const int at = thread_ + n * kNormThreads;
      if (at >= count_) break;
      if constexpr (kEarly)
        weights_[n] = norm_weights(a.weight, at);
      else
        prefetch_l2(a.weight + 8 * at);
    }
  }

  /// Row r begins at to + r · stride. All threads call; the rows are complete on return. Calls
  /// take_sum(r, i, s) with vector i of row r of x + y, in one thread.
  template <class TakeSum>
  __device__ void run(const AddRmsNorm& a, Eight* to, int stride, NormSquares& squares_of_warp,
                      TakeSum take_sum) {
    const int team = static_cast<int>(threadIdx.x) / kNormThreads, lane = thread_ % 32;
    // Threads past the last whole team have no rows.
    const int rows = team < kTeams ? static_cast<int>(a.x.rows) : 0;
    for (int first = team; first < rows; first += kTeams * kAtOnce) {
      float squares[kAtOnce] = {};
#pragma unroll
      for (int n = 0; n < kVectors; n += kEach) {
        Eight x[kAtOnce][kEach] = {}, y[kAtOnce][kEach] = {};
        const auto each = [&](auto&& use) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
            for (int j = 0; j < kEach; ++j) {
              const int r = first + i * kTeams, at = thread_ + (n + j) * kNormThreads;
              if (r < rows && at < count_) use(r, at, i, j);
            }
          }
        };
        each([&](int r, int at, int i, int j) {
          x[i][j] = eights(a.x, r)[at], y[i][j] = eights(a.y, r)[at];
        });
        each([&](int r, int at, int i, int j) {
          const Eight sum = to[r * stride + at] = added(x[i][j], y[i][j]);
          take_sum(r, at, sum);
          add_squares(sum, squares[i]);
        });
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float all = sum_in_warp(squares[i]);
        const int r = first + i * kTeams;
        if (lane == 0 && r < rows) squares_of_warp[r][thread_ / 32] = all;
      }
    }
    __syncthreads();
    for (int r = team; r < rows; r += kTeams) {
      const float squares = sum_in_warp(lane < kNormWarps ? squares_of_warp[r][lane] : 0.0f);
      const float scale = norm_scale(squares, a.x.cols, a.epsilon);
#pragma unroll kEach
      for (int n = 0; n < kVectors; ++n) {
        const int at = thread_ + n * kNormThreads;
        if (at >= count_) break;
        Eight& one = to[r * stride + at];
        one =
            normalized(one, scale, kEarly ? weights_[kEarly ? n : 0] : norm_weights(a.weight, at));
      }
    }
    __syncthreads();
  }

 private:
  static constexpr int kTeams = kThreads / kNormThreads;
  // Rows, and vectors of each, whose loads are issued together. More would not fit into registers.
  static constexpr int kAtOnce = 4 / kVectors, kEach = kVectors == 1 ? 1 : 2;
  static constexpr bool kEarly = kVectors <= 2;  // weights stay in registers

  __device__ static float sum_in_warp(float value) {
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
    return value;
  }

  int thread_, count_;
  EightWeights weights_[kEarly ? kVectors : 1]{};
};

}  // namespace moracle::cuda
