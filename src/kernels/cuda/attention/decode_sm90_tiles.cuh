// Keys and values of one head, on their way through shared memory, and the heads of one token that
// share them (GQA). Each warp copies and multiplies 16 positions of every page, so no warp waits
// for another.
#pragma once

#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

constexpr int kStreamRows = kPagePositions / kWarps;  // positions of a page that a warp takes
static_assert(kStreamRows == 16, "the rows of one product");

/// Ring of a warp's parts of pages. The 16-byte pieces of a row are permuted by the row, so that
/// the same piece of eight rows lies in different banks.
template <int kHead, int kValue, int kStages, int kSize>
struct PageRing {
  static constexpr int kKeyBytes = kStreamRows * kHead * kSize,
                       kValueBytes = kStreamRows * kValue * kSize;
  uint8_t keys[kStages][kKeyBytes];
  uint8_t values[kStages][kValueBytes];
};

/// Copies 16 rows that are adjacent in the cache. Rows from `count` on become zeros: memory that
/// was never written has weight 0, but it may hold NaN.
template <DType kCache, int kColumns>
__device__ __forceinline__ void copy_rows(uint8_t* to, const std::byte* from, int count) {
  constexpr int kEights = kColumns / 8, kSize = cache_element(kCache);
#pragma unroll
  for (int i = 0; i < kStreamRows * kEights / 32; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x) % 32;
    const int row = at / kEights, eight = at % kEights;
    uint8_t* const place = to + (row * kEights + (eight ^ (row & 7))) * 16;
    if constexpr (kCache == DType::kBF16) {
      cp_async_16(place, from + at * 16, row < count);
    } else {
      *reinterpret_cast<uint4*>(place) =
          row < count ? load_eight<kCache>(from + at * 8 * kSize) : uint4{};
    }
  }
}

/// Accumulators of up to 8 · kTiles heads of a token, in the registers of a warp. Lane 4 g + k
/// holds heads 2 k and 2 k + 1 of each tile of 8; of positions and columns rows g and g + 8.
template <int kHead, int kValue, int kTiles>
struct StreamSums {
  // Scores may exceed the reference by this much (base 2) before it moves. Weights stay below 2^8.
  static constexpr float kSlack = 8;
  uint32_t query[kTiles][kHead / 16][2];
  float found[kTiles][kValue / 16][4] = {};  // not yet divided by `sum`
  float reference[kTiles][2], sum[kTiles][2] = {};

  __device__ static int row() { return threadIdx.x % 32 / 4; }
  __device__ static int turn() { return threadIdx.x % 4; }

  /// Loads the queries of heads [first, first + 8 kTiles) below `heads`, of one token.
  __device__ void load_queries(const AttendArgs& a, int64_t token, int64_t first, int64_t heads,
                               int64_t kv) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      reference[t][0] = reference[t][1] = nothing();
      const int64_t head = min(first + 8 * t + row(), heads - 1);
      const auto* const pairs =
          reinterpret_cast<const uint32_t*>(query_of(a, token, kv * heads + head));
#pragma unroll
      for (int i = 0; i < kHead / 16; ++i) {
        query[t][i][0] = pairs[8 * i + turn()];
        query[t][i][1] = pairs[8 * i + turn() + 4];
      }
    }
  }

  /// Adds the 16 positions from `first` on that are in the view.
  __device__ __forceinline__ void take(const uint8_t* keys, const uint8_t* values, int32_t first,
                                       const View& view, float scale) {
    const int lane = threadIdx.x % 32;
    float scores[kTiles][2][4] = {};  // two chains of products
    const int key_row = lane % 16, key_piece = lane / 16;
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      uint32_t rows[4];
      ldmatrix_x4(rows,
                  keys + (key_row * (kHead / 8) + ((2 * i + key_piece) ^ (key_row & 7))) * 16);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        mma_bf16(scores[t][i % 2], rows, query[t][i][0], query[t][i][1]);
    }
    uint32_t weights[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], weights[t], first, view, scale);
    const int value_row = lane % 8 + lane / 16 * 8, value_piece = lane / 8 % 2;
#pragma unroll
    for (int n = 0; n < kValue / 16; ++n) {
      uint32_t columns[4];
      ldmatrix_x4<true>(
          columns,
          values + (value_row * (kValue / 8) + ((2 * n + value_piece) ^ (value_row & 7))) * 16);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) mma_bf16(found[t][n], columns, weights[t][0], weights[t][1]);
    }
  }

  /// Sums over all lanes of the warp.
  __device__ void finish() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        for (int step = 4; step < 32; step *= 2)
          sum[t][h] += __shfl_xor_sync(kAllLanes, sum[t][h], step);
      }
    }
  }

  /// Calls each(head, column, value) for the values of this lane.
  template <class Each>
  __device__ void each_found(const Each& each) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          each(8 * t + 2 * turn() + c % 2, 16 * n + row() + c / 2 * 8, found[t][n][c]);
      }
    }
  }

 protected:
  /// Online softmax with a reference that moves only when scores exceed it by far.
  __device__ __forceinline__ void weigh(int t, float (&chains)[2][4], uint32_t (&weights)[2],
                                        int32_t first, const View& view, float scale) {
    float scores[4];
    bool exceeds = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int32_t position = first + row() + c / 2 * 8;
      const bool seen = position >= view.begin && position < view.end;
      scores[c] = seen ? (chains[0][c] + chains[1][c]) * scale : nothing();
      exceeds = exceeds || scores[c] > reference[t][c % 2] + kSlack;
    }
    if (__any_sync(kAllLanes, exceeds)) move_reference(t, scores);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      // A head that has seen no position yet has no reference.
      scores[c] = scores[c] == nothing() ? 0.0f : exp2f(scores[c] - reference[t][c % 2]);
      sum[t][c % 2] += scores[c];
    }
    weights[0] = movmatrix_trans(to_bf16_pair(scores[0], scores[1]));
    weights[1] = movmatrix_trans(to_bf16_pair(scores[2], scores[3]));
  }
  __device__ __forceinline__ void move_reference(int t, const float (&scores)[4]) {
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = fmaxf(scores[h], scores[h + 2]);
      for (int step = 4; step < 32; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
      most = fmaxf(most, reference[t][h]);
      shrink[h] = most == nothing() ? 1.0f : exp2f(reference[t][h] - most);
      reference[t][h] = most;
    }
#pragma unroll
    for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) found[t][n][c] *= shrink[c % 2];
    }
    sum[t][0] *= shrink[0], sum[t][1] *= shrink[1];
  }
};

}  // namespace moracle::cuda
