// Top-k of long rows. Each block sorts a piece of a row and keeps the candidates. Rounds repeat
// until one piece is left.
#include <cub/block/block_radix_sort.cuh>

#include "base/try.h"
#include "kernels/check_ops.h"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/top_k_key.h"

namespace moracle {
namespace cuda {
namespace {

constexpr int kTopKThreads = 256, kEach = 8;
static_assert(kTopKThreads * kEach == kTopKPiece);
static_assert(2 * kMostTopK <= kTopKPiece, "each round must leave less than there was");

__host__ __device__ int64_t pieces_of(int64_t count) {
  return (count + kTopKPiece - 1) / kTopKPiece;
}

// Arguments of one round. The input is numbers or keys. The output is keys, or ids and values in
// the last round.
struct Round {
  Matrix numbers;
  const uint64_t* keys;  // [rows, count]; null: read `numbers`
  int64_t count, k, rows;
  uint64_t* to;  // [rows, pieces, k]; null in the last round
  int32_t* ids;
  float* values;  // [rows, k] each
};

__global__ void __launch_bounds__(kTopKThreads) top_k_of_pieces(Round round) {
  using Sort = cub::BlockRadixSort<uint64_t, kTopKThreads, kEach>;
  __shared__ typename Sort::TempStorage scratch;
  const int64_t pieces = pieces_of(round.count);
  for (int64_t b = blockIdx.x; b < round.rows * pieces; b += gridDim.x) {
    const int64_t row = b / pieces, first = b % pieces * kTopKPiece;
    const float* const numbers =
        static_cast<const float*>(round.numbers.data) + row * round.numbers.stride;
    uint64_t keys[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t at = first + i * kTopKThreads + threadIdx.x;
      keys[i] = at >= round.count       ? kNoKey
                : round.keys != nullptr ? round.keys[row * round.count + at]
                                        : top_k_key(numbers[at], static_cast<int32_t>(at));
    }
    if (round.k == 1) {
      uint64_t best = kNoKey;
#pragma unroll
      for (int i = 0; i < kEach; ++i) best = max(best, keys[i]);
      keys[0] = block_reduce(best, kNoKey, [](uint64_t a, uint64_t c) { return max(a, c); });
    } else {
      __syncthreads();  // wait until the scratch of the previous piece has been read
      Sort(scratch).SortDescending(keys);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t rank = threadIdx.x * kEach + i;
      if (rank >= round.k) break;
      if (round.to != nullptr) {
        round.to[b * round.k + rank] = keys[i];
      } else {
        round.ids[row * round.k + rank] = place_of_key(keys[i]);
        round.values[row * round.k + rank] = value_of_key(keys[i]);
      }
    }
  }
}

}  // namespace
}  // namespace cuda

Status CudaOps::find_top_k(const Matrix& numbers, int64_t k, int32_t* ids, float* values,
                           std::byte* scratch, Stream stream) {
  MORACLE_CHECK(check_top_k(numbers, k));
  auto* keys = reinterpret_cast<uint64_t*>(scratch);
  uint64_t* other = keys + numbers.rows * cuda::pieces_of(numbers.cols) * k;
  cuda::Round round{numbers, nullptr, numbers.cols, k, numbers.rows, keys, ids, values};
  for (;;) {
    const int64_t pieces = cuda::pieces_of(round.count);
    round.to = pieces > 1 ? keys : nullptr;
    MORACLE_CHECK(cuda::launch(queue_, stream, "top_k_of_pieces", cuda::top_k_of_pieces,
                               numbers.rows * pieces, cuda::kTopKThreads, 0, round));
    if (pieces == 1) return {};
    round.keys = keys;
    round.count = pieces * k;
    std::swap(keys, other);
  }
}

}  // namespace moracle
