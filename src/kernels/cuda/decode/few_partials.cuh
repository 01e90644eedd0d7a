// Adds the sums of the warps of a team, each of which has its own columns of a unit. Teams are
// independent of each other.
#pragma once

#include "kernels/cuda/decode/few_args.h"
#include "kernels/cuda/ptx/named_barrier.cuh"

namespace moracle::cuda {

/// kTeam warps make a team. One instance for each team.
template <int kPanels, int kOctets, int kTeam>
class FewPartials {
 public:
  static constexpr int kRows = 8 * kOctets;  // rows of activations
  /// Sums of a unit that each thread adds.
  static constexpr int kEach = (16 * kRows + kTeam * 32 - 1) / (kTeam * 32);

  /// Stores a warp's sums of a unit, and waits for the other warps of the team.
  __device__ void put(const float (&total)[kPanels][kOctets][4]) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int warp = static_cast<int>(threadIdx.x / 32) % kTeam;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = o * 8 + lane % 4 * 2 + i;
          float* const to = &sums_[warp][p][row][lane / 4 * 2 ^ swizzle(row)];
          *reinterpret_cast<float2*>(to) = {total[p][o][i], total[p][o][2 + i]};
        }
      }
    }
    wait();
  }
  /// Waits until every warp of the team has got its sums.
  __device__ static void wait() {
    const int team = static_cast<int>(threadIdx.x / 32) / kTeam;
    named_barrier_sync<kTeam * 32>(1 + team);
  }

  /// The place of this thread's i-th sum: an output of the panel and a row of the activations.
  __device__ static int output() {
    return static_cast<int>(threadIdx.x % 16);
  }
  __device__ static int row(int i) {
    return static_cast<int>(threadIdx.x) % (kTeam * 32) / 16 + i * kTeam * 2;
  }
  /// Requires row(i) < kRows.
  __device__ void get(int i, float (&sum)[kPanels]) const {
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      sum[p] = 0;
#pragma unroll
      for (int w = 0; w < kTeam; ++w) sum[p] += sums_[w][p][row(i)][output() ^ swizzle(row(i))];
    }
  }

 private:
  // Rows that a warp stores at once lie in different banks.
  __device__ static int swizzle(int row) {
    return row / 2 % 4 * 4;
  }

  float sums_[kTeam][kPanels][kRows][16];
};

}  // namespace moracle::cuda
