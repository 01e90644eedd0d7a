// Top-k of long rows. Each block keeps the candidates of a tile of a row. Rounds repeat until one
// tile is left, whose candidates are put in order.
//
// A block finds its k-th largest key by bisection: threads count the keys above a bound that moves
// by one bit at a time. That takes a fifth of the instructions of sorting the tile.
#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/top_k_key.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kTopKThreads = 256, kEach = 8, kTopKWarps = kTopKThreads / 32;
static_assert(kTopKThreads * kEach == kTopKTile);
static_assert(kMostTopK <= kTopKThreads, "a thread finds the place of one candidate");
static_assert(2 * kMostTopK <= kTopKTile, "each round must leave less than there was");

__host__ __device__ int64_t tiles_of(int64_t count) {
  return (count + kTopKTile - 1) / kTopKTile;
}

// Arguments of one round. The input is numbers or keys. The output is keys, or ids and values in
// the last round.
struct Round {
  Matrix numbers;
  const uint64_t* keys;  // [rows, count]; null: read `numbers`
  int64_t count, k, rows;
  uint64_t* to;  // [rows, tiles, k], unordered; null in the last round
  int32_t* ids;
  float* values;  // [rows, k] each
};

__device__ int sum_in_warp(int value) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kAllLanes, value);
#else
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
#endif
}

// Counts of all warps. Two sets take turns, so that each count takes one barrier.
struct Counts {
  int of_warp[2][kTopKWarps];
};
// Number of the block's values for which is_counted is true; `buffer` alternates.
template <class Value, class IsCounted>
__device__ int count_in_block(const Value (&values)[kEach], Counts& counts, int buffer,
                              IsCounted is_counted) {
  int own = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) own += is_counted(values[i]);
  own = sum_in_warp(own);
  if (threadIdx.x % 32 == 0) counts.of_warp[buffer % 2][threadIdx.x / 32] = own;
  __syncthreads();
  int all = 0;
#pragma unroll
  for (int w = 0; w < kTopKWarps; ++w) all += counts.of_warp[buffer % 2][w];
  return all;
}

// The largest bound that at least k of the values reach.
__device__ uint32_t bound_of(const uint32_t (&values)[kEach], int k, Counts& counts) {
  uint32_t bound = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t next = bound | 1u << bit;
    const int reached =
        count_in_block(values, counts, bit, [next](uint32_t v) { return v >= next; });
    if (reached >= k) bound = next;
    if (reached == k) break;
  }
  return bound;
}

// Returns a key that exactly k of the block's keys reach. Keys are distinct, except kNoKey.
__device__ uint64_t least_kept(const uint64_t (&keys)[kEach], int k, Counts& counts) {
  uint32_t words[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) words[i] = static_cast<uint32_t>(keys[i] >> 32);
  const uint32_t high = bound_of(words, k, counts);
  const uint64_t least = uint64_t{high} << 32;
  __syncthreads();  // the counts of bound_of have been read
  const int above = count_in_block(words, counts, 0, [high](uint32_t word) { return word > high; });
  const int equal =
      count_in_block(words, counts, 1, [high](uint32_t word) { return word == high; });
  if (above + equal == k || high == 0) return least;
    // Keep the lowest indices among ties: compare the low halves of keys that tie, and 0 for all
    // others.
#pragma unroll
  for (int i = 0; i < kEach; ++i) words[i] = words[i] == high ? static_cast<uint32_t>(keys[i]) : 0u;
  __syncthreads();
  return least | bound_of(words, k - above, counts);
}

__global__ void __launch_bounds__(kTopKThreads) top_k_of_tiles(Round round) {
  __shared__ Counts counts;
  __shared__ int found;
  __shared__ uint64_t kept[kMostTopK];
  pdl_wait();
  pdl_launch_dependents();
  const int64_t tiles = tiles_of(round.count);
  const int k = static_cast<int>(round.k), thread = static_cast<int>(threadIdx.x);
  for (int64_t b = blockIdx.x; b < round.rows * tiles; b += gridDim.x) {
    const int64_t row = b / tiles, first = b % tiles * kTopKTile;
    const float* const numbers =
        static_cast<const float*>(round.numbers.data) + row * round.numbers.stride;
    uint64_t keys[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kTopKThreads + thread;
      keys[i] = at >= round.count       ? kNoKey
                : round.keys != nullptr ? round.keys[row * round.count + at]
                                        : top_k_key(numbers[at], static_cast<int32_t>(at));
    }
    __syncthreads();  // the candidates of the previous tile have been read
    if (thread == 0) found = 0;
    if (thread < k) kept[thread] = kNoKey;
    if (k == 1) {
      uint64_t best = kNoKey;
#pragma unroll
      for (int i = 0; i < kEach; ++i) best = max(best, keys[i]);
      best = block_reduce(best, kNoKey, [](uint64_t a, uint64_t c) { return max(a, c); });
      if (thread == 0) kept[0] = best;
    } else {
      const uint64_t least = max(least_kept(keys, k, counts), kNoKey + 1);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (keys[i] >= least) kept[atomicAdd(&found, 1)] = keys[i];
      }
    }
    __syncthreads();
    if (thread >= k) continue;
    const uint64_t own = kept[thread];
    if (round.to != nullptr) {
      round.to[b * round.k + thread] = own;
      continue;
    }
    int rank = 0;
    for (int i = 0; i < k; ++i) rank += kept[i] > own;
    round.ids[row * round.k + rank] = index_of_key(own);
    round.values[row * round.k + rank] = value_of_key(own);
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                           std::byte* scratch, Stream stream) {
  MORACLE_CHECK(check_top_k(numbers, k));
  auto* keys = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* other = keys + numbers.rows * cuda::tiles_of(numbers.cols) * k;
  cuda::Round round{numbers, nullptr, numbers.cols, k, numbers.rows, keys, ids, values};
  for (;;) {
    const int64_t tiles = cuda::tiles_of(round.count);
    round.to = tiles > 1 ? keys : nullptr;
    MORACLE_CHECK(cuda::launch_early(queue_, stream, "top_k_of_tiles", cuda::top_k_of_tiles,
                                     numbers.rows * tiles, cuda::kTopKThreads, 0, round));
    if (tiles == 1) return {};
    round.keys = keys;
    round.count = tiles * k;
    std::swap(keys, other);
  }
}

}  // namespace moracle
