// The weighted sum of each token's rows.
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/each_element.cuh"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle {
namespace cuda {
namespace {

// Adds the rows of a token in f32, in the order of their experts, which is also the order of rows.
// Supports any top_k. combine_ordered below finds the order once per block.
struct Combine {
  Matrix y, out;
  const int32_t* slot_row;
  const float* weights;
  int64_t top_k;

  // Returns the slot of token t whose row comes next after `row`, or -1.
  __device__ int64_t next_slot(int64_t t, int32_t row) const {
    int64_t next = -1;
    for (int64_t j = t * top_k; j < (t + 1) * top_k; ++j) {
      if (slot_row[j] > row && (next < 0 || slot_row[j] < slot_row[next])) next = j;
    }
    return next;
  }
  __device__ void operator()(int64_t t, int64_t c) const {
    float sum = 0;
    for (int64_t j = next_slot(t, -1); j >= 0; j = next_slot(t, slot_row[j]))
      sum += (weights != nullptr ? weights[j] : 1.0f) * load(y, slot_row[j], c);
    store(out, t, c, sum);
  }
};

constexpr int kMostSlots = 32;        // slots that one warp orders
constexpr int kColumnsAtOnce = 1024;  // columns of a token that a block processes

// Rows of a token's slots before `own`, and all; -1 is none. A lane has a slot.
__device__ Rank rank_in_warp(int32_t own, int top_k) {
  Rank rank{0, 0};
  for (int other = 0; other < top_k; ++other) {
    const int32_t row = __shfl_sync(kAllLanes, own, other);
    rank.before += row >= 0 && row < own;
    rank.total += row >= 0;
  }
  return rank;
}

__global__ void __launch_bounds__(kElementThreads) combine_ordered(Combine c) {
  __shared__ int32_t rows[kMostSlots];
  __shared__ float weights[kMostSlots];
  __shared__ int count;
  const int64_t tiles = (c.out.cols + kColumnsAtOnce - 1) / kColumnsAtOnce;
  const auto top_k = static_cast<int>(c.top_k);
  for (int64_t b = blockIdx.x; b < c.out.rows * tiles; b += gridDim.x) {
    const int64_t t = b / tiles;
    __syncthreads();  // wait until the previous order has been used
    if (threadIdx.x < 32) {
      const int j = threadIdx.x;
      const int32_t own = j < top_k ? c.slot_row[t * top_k + j] : -1;
      const Rank rank = rank_in_warp(own, top_k);
      if (own >= 0) {
        rows[rank.before] = own;
        weights[rank.before] = c.weights != nullptr ? c.weights[t * top_k + j] : 1.0f;
      }
      if (j == 0) count = rank.total;
    }
    __syncthreads();
    const int64_t first = b % tiles * kColumnsAtOnce,
                  last = min(c.out.cols, first + kColumnsAtOnce);
    for (int64_t at = first + threadIdx.x; at < last; at += kElementThreads) {
      float sum = 0;
      for (int i = 0; i < count; ++i) sum += weights[i] * load(c.y, rows[i], at);
      store(c.out, t, at, sum);
    }
  }
}

constexpr int kUnitThreads = 128;                           // four warps, each with its own unit
constexpr int kUnitColumns = 256, kMostUnitColumns = 1024;  // a lane reads eight at once
constexpr int kRowsAtOnce = 8;

// Combine for rows of bf16 in whole vectors. A warp adds `columns` columns of a token.
__global__ void __launch_bounds__(kUnitThreads) combine_vectors(Combine c, int columns) {
  pdl_wait();
  pdl_launch_dependents();
  __shared__ int32_t all_rows[kUnitThreads / 32][kMostSlots];
  __shared__ float all_weights[kUnitThreads / 32][kMostSlots];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, top_k = static_cast<int>(c.top_k);
  int32_t* const rows = all_rows[warp];
  float* const weights = all_weights[warp];
  const int cols = static_cast<int>(c.out.cols), tiles = (cols + columns - 1) / columns;
  const int64_t units = c.out.rows * tiles;
  for (int64_t unit = blockIdx.x * int64_t{kUnitThreads / 32} + warp; unit < units;
       unit += gridDim.x * int64_t{kUnitThreads / 32}) {
    const int64_t t = unit / tiles;
    const int32_t own = lane < top_k ? c.slot_row[t * top_k + lane] : -1;
    const Rank rank = rank_in_warp(own, top_k);
    __syncwarp();  // the previous order has been used
    if (own >= 0) {
      rows[rank.before] = own;
      weights[rank.before] = c.weights != nullptr ? c.weights[t * top_k + lane] : 1.0f;
    }
    __syncwarp();
    const int first = static_cast<int>(unit % tiles) * columns, last = min(cols, first + columns);
    for (int at = first + lane * 8; at < last; at += kUnitColumns) {
      float sum[8] = {};
      for (int begin = 0; begin < rank.total; begin += kRowsAtOnce) {
        uint4 words[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          if (begin + i < rank.total)
            words[i] = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(c.y.data) +
                                                       rows[begin + i] * c.y.stride + at);
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
          if (begin + i >= rank.total) continue;
          const uint32_t pairs[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
          for (int j = 0; j < 8; ++j)
            sum[j] += weights[begin + i] *
                      __uint_as_float(j % 2 == 0 ? pairs[j / 2] << 16 : pairs[j / 2] & 0xffff0000u);
        }
      }
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        pairs[j] = float_to_bf16(sum[2 * j]) | uint32_t{float_to_bf16(sum[2 * j + 1])} << 16;
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(c.out.data) + t * c.out.stride + at) = {
          pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }
}

bool in_vectors(const Matrix& m) {
  return m.dtype == DType::kBF16 && m.cols % 8 == 0 && m.stride % 8 == 0 &&
         reinterpret_cast<uintptr_t>(m.data) % 16 == 0;
}

}  // namespace
}  // namespace cuda

Status CudaOps::combine(const Matrix& y, const int32_t* slot_row, const float* topk_weights,
                        int64_t top_k, const Matrix& out, Stream stream) {
  MORACLE_CHECK(cuda::check_floats({&y, &out}));
  const cuda::Combine combine{y, out, slot_row, topk_weights, top_k};
  if (top_k > cuda::kMostSlots)
    return cuda::launch_elements(queue_, stream, "combine", out.rows, out.cols, combine);
  if (cuda::in_vectors(y) && cuda::in_vectors(out)) {
    // Many tokens fill the GPU with fewer warps, which find the order once for more columns.
    const int columns = out.rows >= 1024 ? cuda::kMostUnitColumns : cuda::kUnitColumns;
    const int64_t units = out.rows * ((out.cols + columns - 1) / columns);
    return cuda::launch_early(queue_, stream, "combine", cuda::combine_vectors, (units + 3) / 4,
                              cuda::kUnitThreads, 0, combine, columns);
  }
  const int64_t tiles = (out.cols + cuda::kColumnsAtOnce - 1) / cuda::kColumnsAtOnce;
  return cuda::launch(queue_, stream, "combine", cuda::combine_ordered, out.rows * tiles,
                      cuda::kElementThreads, 0, combine);
}

}  // namespace moracle
