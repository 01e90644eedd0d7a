// Block-wide reductions. Every thread of the block must call them. The block consists of whole
// warps, at most 1024 threads.
#pragma once

#include <cstdint>

namespace moracle::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;

/// Reduces all threads' values with combine(a, b); every thread gets the result. The order is
/// fixed, so the result does not depend on timing.
template <class T, class Combine>
__device__ T block_reduce(T value, T nothing, Combine combine) {
  __shared__ T of_warp[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  __syncthreads();  // wait until the previous call's values have been read
  if (lane == 0) of_warp[warp] = value;
  __syncthreads();
  value = lane < warps ? of_warp[lane] : nothing;
  for (int step = 16; step > 0; step /= 2)
    value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

template <class T>
__device__ T block_sum(T value) {
  return block_reduce(value, T{}, [](T a, T b) { return a + b; });
}

/// Sums of the threads before this one, and of all.
struct Rank {
  int32_t before, total;
};
__device__ inline Rank block_scan(int32_t value) {
  __shared__ int32_t of_warp[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  int32_t up_to = value;
  for (unsigned step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += other;
  }
  __syncthreads();  // wait until the previous call's sums have been read
  if (lane == 31) of_warp[warp] = up_to;
  __syncthreads();
  Rank rank{up_to - value, 0};
  for (unsigned w = 0; w < warps; ++w) {
    if (w < warp) rank.before += of_warp[w];
    rank.total += of_warp[w];
  }
  return rank;
}

}  // namespace moracle::cuda
