// Attention of the heads of one token that share keys (GQA), in the registers of a warp. The
// products multiply rows of K, then columns of V, by 8 heads. Nothing goes through shared memory.
// The order of columns within a product is free, so each thread takes columns that are adjacent in
// the cache.
#pragma once

#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

constexpr int kTile = 32;  // positions that a warp processes at once

/// Accumulators of up to 8 · kTiles heads of a token, in the registers of a warp. Lane 4 g + k
/// holds heads 2 k and 2 k + 1 of each tile of 8. Its positions and columns follow from g.
template <int kHead, int kValue, DType kCache, int kTiles>
struct HeadFinds {
  static_assert(kHead % 32 == 0 && kValue % 64 == 0);
  using Of = Heads<kHead, kValue, kCache>;
  uint32_t query[kTiles][kHead / 16][2];
  float found[kTiles][kValue / 16][4] = {};       // not yet divided by `sum`
  float largest[kTiles][2], sum[kTiles][2] = {};  // base-2 scores

  __device__ static int row() { return threadIdx.x % 32 / 4; }
  __device__ static int turn() { return threadIdx.x % 4; }

  /// Loads the queries of heads [first, first + 8 kTiles) below `heads`, of one token.
  __device__ HeadFinds(const AttendArgs& a, int64_t token, int64_t first, int64_t heads,
                       int64_t kv) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      largest[t][0] = largest[t][1] = nothing();
      const int64_t head = first + 8 * t + row();
      const uint16_t* const from = query_of(a, token, kv * heads + min(head, heads - 1));
#pragma unroll
      for (int i = 0; i < kHead / 32; ++i) {
        const uint4 eight = *reinterpret_cast<const uint4*>(from + 32 * i + 8 * turn());
        query[t][2 * i][0] = eight.x, query[t][2 * i][1] = eight.y;
        query[t][2 * i + 1][0] = eight.z, query[t][2 * i + 1][1] = eight.w;
      }
    }
  }

  /// Adds the positions of [first, first + kTile) that are in the view.
  __device__ void take(const Of& of, const Lines& lines, int32_t first, const View& view,
                       float scale) {
    float scores[kTiles][2][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::byte* const key =
            lines.keys + (16 * half + row()) * of.kKeyStep + (32 * i + 8 * turn()) * Of::kSize;
        const uint4 a = load_eight<kCache>(key), b = load_eight<kCache>(key + 8 * of.kKeyStep);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma_bf16(scores[t][half], {a.x, b.x, a.y, b.y}, query[t][2 * i][0], query[t][2 * i][1]);
          mma_bf16(scores[t][half], {a.z, b.z, a.w, b.w}, query[t][2 * i + 1][0],
                   query[t][2 * i + 1][1]);
        }
      }
    }
    // Load the values early, before their weights are known.
    uint4 values[2][kValue / 64][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 16 * half + 2 * turn();
#pragma unroll
      for (int b = 0; b < kValue / 64; ++b) {
        const std::byte* const value =
            lines.values + at * of.kValueStep + (64 * b + 8 * row()) * Of::kSize;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int down = r % 2 + r / 2 * 8;
          values[half][b][r] = uint4{};
          // Memory that was never written has weight 0, but it may hold NaN: use zeros instead.
          if (first + at + down < view.end)
            values[half][b][r] = load_eight<kCache>(value + down * of.kValueStep);
        }
      }
    }
    uint32_t weights[kTiles][2][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], weights[t], first, view, scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int b = 0; b < kValue / 64; ++b) {
        const uint4(&rows)[4] = values[half][b];
        add(4 * b, weights, half, rows[0].x, rows[1].x, rows[2].x, rows[3].x);
        add(4 * b + 1, weights, half, rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        add(4 * b + 2, weights, half, rows[0].z, rows[1].z, rows[2].z, rows[3].z);
        add(4 * b + 3, weights, half, rows[0].w, rows[1].w, rows[2].w, rows[3].w);
      }
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
        for (int c = 0; c < 4; ++c) {
          each(8 * t + 2 * turn() + c % 2, n / 4 * 64 + 8 * row() + n % 4 * 2 + c / 2,
               found[t][n][c]);
        }
      }
    }
  }

 private:
  /// Online softmax: turns scores into weights relative to the largest score so far, and rescales
  /// the earlier results.
  __device__ void weigh(int t, float (&scores)[2][4], uint32_t (&weights)[2][2], int32_t first,
                        const View& view, float scale) {
    float base[2], shrink[2];
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int32_t position = first + 16 * half + row() + c / 2 * 8;
        const bool seen = position >= view.begin && position < view.end;
        scores[half][c] = seen ? scores[half][c] * scale : nothing();
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most =
          fmaxf(fmaxf(scores[0][h], scores[0][h + 2]), fmaxf(scores[1][h], scores[1][h + 2]));
      for (int step = 4; step < 32; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
      most = fmaxf(most, largest[t][h]);
      // A head that has seen no position yet has no largest score.
      base[h] = most == nothing() ? 0.0f : most;
      shrink[h] = exp2f(largest[t][h] - base[h]);
      grown = grown || most != largest[t][h];
      largest[t][h] = most;
    }
    if (__any_sync(kAllLanes, grown)) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) found[t][n][c] *= shrink[c % 2];
      }
      sum[t][0] *= shrink[0], sum[t][1] *= shrink[1];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[half][c] = exp2f(scores[half][c] - base[c % 2]);
        sum[t][c % 2] += scores[half][c];
      }
      weights[half][0] = movmatrix_trans(to_bf16_pair(scores[half][0], scores[half][1]));
      weights[half][1] = movmatrix_trans(to_bf16_pair(scores[half][2], scores[half][3]));
    }
  }

  /// Adds two neighbouring columns of four positions: a and b are neighbouring positions, as are c
  /// and d.
  __device__ void add(int n, const uint32_t (&weights)[kTiles][2][2], int half, uint32_t a,
                      uint32_t b, uint32_t c, uint32_t d) {
    const uint32_t columns[4] = {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632),
                                 __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632)};
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      mma_bf16(found[t][n], columns, weights[t][half][0], weights[t][half][1]);
  }
};

}  // namespace moracle::cuda
