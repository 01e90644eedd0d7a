// GEMV on bf16 weights in rows, for up to 8 rows of x. A CTA computes 16 outputs. Its warps split
// K, so that all of the CTA's weights are in flight at once: 128 KB for K = 4096. A warp that reads
// all of K alone has 8 KB in flight, too few to keep the memory busy.
//
// A lane loads 16 contiguous bytes of a weight row and of an activation row. The tensor core sums
// over columns in any order, so both operands use the order in which they were loaded.
#pragma once

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemv/dense_bf16.h"
#include "kernels/cuda/gemv/gemv_plan.h"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

static_assert(kDenseGemvRows == 8, "one tile of the tensor core's second operand");
inline constexpr int kDenseBf16Outputs = 16;  ///< of a CTA
inline constexpr int kDenseBf16Step = 64;  ///< columns of a warp's step: a cache line of each row
inline constexpr int kDenseBf16Ahead = 4;  ///< steps whose loads are issued together
/// Warps of a CTA: enough to load all columns of a weight row at once, up to 4,096.
inline constexpr int kDenseBf16Warps = 8, kDenseBf16ManyWarps = 16;
inline bool takes_many_warps(int64_t k) {
  return k > int64_t{kDenseBf16Step} * kDenseBf16Ahead * kDenseBf16Warps;
}

template <int kWarps>
using DenseBf16Sums = float[kWarps][kDenseBf16Outputs][kDenseGemvRows];

/// Eight columns of a weight row, or zeros past the end.
__device__ inline uint4 load8(const uint16_t* row, int64_t column, int64_t k, bool there) {
  if (!there || column >= k) return {};
  return __ldcs(reinterpret_cast<const uint4*>(row + column));
}

/// Sums of the CTA's outputs, over the columns of each warp. Calls await() after the first loads
/// of weights, in all threads. Then x(column) returns eight columns of row threadIdx.x % 32 / 4,
/// zeros if there is no such row.
template <int kWarps, class Await, class X>
__device__ void sum_dense_bf16(const DenseBf16& args, DenseBf16Sums<kWarps>& sums, Await await,
                               X x) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t n = args.n, k = args.k;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kDenseBf16Outputs;
  const bool low = first + g < n, high = first + g + 8 < n;
  const uint16_t* const w_low = args.weights + (first + g) * k;
  const uint16_t* const w_high = w_low + 8 * k;
  float acc[4] = {};
  bool waits = true;
  for (int64_t from = 0; from < k; from += int64_t{kDenseBf16Step} * kWarps * kDenseBf16Ahead) {
    const auto column = [&](int s, int half) {
      return from + (s * kWarps + warp) * kDenseBf16Step + half * 32 + t * 8;
    };
    uint4 w[kDenseBf16Ahead][2][2];  // step, half of the step, low or high weight row
#pragma unroll
    for (int s = 0; s < kDenseBf16Ahead; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        w[s][half][0] = load8(w_low, column(s, half), k, low);
        w[s][half][1] = load8(w_high, column(s, half), k, high);
      }
    }
    if (waits) await();
    waits = false;
#pragma unroll
    for (int s = 0; s < kDenseBf16Ahead; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 &l = w[s][half][0], &h = w[s][half][1];
        const uint4 b = x(column(s, half));
        mma_bf16(acc, {l.x, h.x, l.y, h.y}, b.x, b.y);
        mma_bf16(acc, {l.z, h.z, l.w, h.w}, b.z, b.w);
      }
    }
  }
  sums[warp][g][2 * t] = acc[0];
  sums[warp][g][2 * t + 1] = acc[1];
  sums[warp][g + 8][2 * t] = acc[2];
  sums[warp][g + 8][2 * t + 1] = acc[3];
}

/// Adds the sums of all warps and the bias, and calls put(row, output, sum) for the CTA's
/// outputs. Requires a barrier after sum_dense_bf16.
template <int kWarps, class Put>
__device__ void put_dense_bf16(const DenseBf16& args, const DenseBf16Sums<kWarps>& sums, Put put) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kDenseBf16Outputs;
  for (int i = threadIdx.x; i < kDenseBf16Outputs * args.x.rows; i += 32 * kWarps) {
    const int output = i % kDenseBf16Outputs, row = i / kDenseBf16Outputs;
    if (first + output >= args.n) continue;
    float sum = args.bias != nullptr ? args.bias[first + output] : 0;
#pragma unroll
    for (int i_warp = 0; i_warp < kWarps; ++i_warp) sum += sums[i_warp][output][row];
    put(row, first + output, sum);
  }
}
/// Stores the CTA's outputs.
template <int kWarps>
__device__ void store_dense_bf16(const DenseBf16& args, const DenseBf16Sums<kWarps>& sums) {
  put_dense_bf16<kWarps>(
      args, sums, [&](int row, int64_t output, float sum) { store(args.y, row, output, sum); });
}

/// Eight columns of this lane's row of x in global memory.
struct DenseBf16X {
  const uint16_t* row;
  int64_t k;
  bool there, aligned;
  __device__ DenseBf16X(const DenseBf16& args, bool are_aligned)
      : row(static_cast<const uint16_t*>(args.x.data) + threadIdx.x % 32 / 4 * args.x.stride),
        k(args.k),
        there(threadIdx.x % 32 / 4 < args.x.rows),
        aligned(are_aligned) {}
  __device__ uint4 operator()(int64_t column) const {
    if (!there || column >= k) return {};
    if (aligned) return *reinterpret_cast<const uint4*>(row + column);
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = row[column + 2 * i] | static_cast<uint32_t>(row[column + 2 * i + 1]) << 16;
    }
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};
inline bool has_aligned_rows(const Matrix& x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
}

}  // namespace moracle::cuda
