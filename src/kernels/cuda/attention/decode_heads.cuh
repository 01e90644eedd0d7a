// Decode attention of the query heads of one token that share a KV head (GQA), in the registers of
// a warp. The products are K · Qᵀ, then Vᵀ · weights: 16 positions (or columns of V) by 8 heads.
#pragma once

#include "kernels/cuda/attention/online_softmax.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

/// Queries and accumulators of up to 8 · kTiles heads. Lane 4 g + k holds heads 2 k and 2 k + 1 of
/// each 8. A Tile delivers the fragments of keys and values, and decides which of their columns a
/// fragment holds; it has kBlocks blocks of 16 positions. The reference moves when a score exceeds
/// it by more than Tile::kSlack.
template <class Tile, int kTiles>
struct DecodeHeads {
  static constexpr int kHead = Tile::kHead, kValue = Tile::kValue, kBlocks = Tile::kBlocks;
  static_assert(kBlocks == 1 || kBlocks == 2);
  uint32_t query[kTiles][kHead / 16][2];
  float acc[kTiles][kValue / 16][4] = {};  // not yet divided by the sum of weights
  HeadSoftmax softmax[kTiles];

  /// Loads the queries of heads [first, first + 8 kTiles) below `heads`, of one token.
  __device__ __forceinline__ void load_queries(const AttendArgs& a, int64_t token, int64_t first,
                                               int64_t heads, int64_t kv) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int64_t head = min(first + 8 * t + lane_row(), heads - 1);
      const auto* const pairs = static_cast<const uint32_t*>(
          __builtin_assume_aligned(query_of(a, token, kv * heads + head), 16));
#pragma unroll
      for (int i = 0; i < kHead / 16; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) query[t][i][half] = pairs[Tile::query_pair(i, half)];
      }
    }
  }

  /// Adds the tile's positions that are in the view. The tile begins at position `first`.
  __device__ __forceinline__ void take(Tile tile, int32_t first, const View& view, float scale) {
    float scores[kTiles][2][4] = {};  // of two blocks, or two chains of products of one block
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        uint32_t keys[4];
        tile.load_keys(block, i, keys);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_bf16(scores[t][kBlocks == 2 ? block : i % 2], keys, query[t][i][0], query[t][i][1]);
      }
    }
    tile.prefetch_values();
    uint32_t weights[kTiles][kBlocks][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], weights[t], first, view, scale);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
        uint32_t values[4];
        tile.load_values(block, n, values);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_bf16(acc[t][n], values, weights[t][block][0], weights[t][block][1]);
      }
    }
  }

  /// Sums the weights over the lanes of the warp.
  __device__ void finish() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) softmax[t].finish();
  }

 private:
  /// Turns scores into weights, a pair of heads in a word.
  __device__ __forceinline__ void weigh(int t, const float (&products)[2][4],
                                        uint32_t (&weights)[kBlocks][2], int32_t first,
                                        const View& view, float scale) {
    HeadSoftmax& state = softmax[t];
    float scores[kBlocks][4];
    bool exceeds = false;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int32_t position = first + 16 * block + lane_row() + c / 2 * 8;
        const bool seen = position >= view.begin && position < view.end;
        const float product = kBlocks == 2 ? products[block][c] : products[0][c] + products[1][c];
        scores[block][c] = seen ? product * scale : kMinusInfinity;
        if constexpr (Tile::kLazy)
          exceeds = exceeds || scores[block][c] > state.reference[c % 2] + kReferenceSlack;
      }
    }
    const float before[2] = {state.reference[0], state.reference[1]};
    float shrink[2];
    if (!Tile::kLazy || __any_sync(kAllLanes, exceeds)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = fmaxf(scores[0][h], scores[0][h + 2]);
        if constexpr (kBlocks == 2) most = fmaxf(most, fmaxf(scores[1][h], scores[1][h + 2]));
        shrink[h] = state.raise(h, most);
      }
      const bool grown = state.reference[0] != before[0] || state.reference[1] != before[1];
      if (Tile::kLazy || __any_sync(kAllLanes, grown)) {
#pragma unroll
        for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[t][n][c] *= shrink[c % 2];
        }
        state.sum[0] *= shrink[0], state.sum[1] *= shrink[1];
      }
    }
    const float base[2] = {state.base(0), state.base(1)};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float own[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        own[c] = exp2f(scores[block][c] - base[c % 2]);
        state.sum[c % 2] += own[c];
      }
      weights[block][0] = movmatrix_trans(to_bf16_pair(own[0], own[1]));
      weights[block][1] = movmatrix_trans(to_bf16_pair(own[2], own[3]));
    }
  }
};

/// The softmax state of a head over several warps or CTAs.
struct HeadState {
  float reference, sum;
};
/// Computes the factors that rescale `count` partial results of a head to the largest reference.
template <int kHeads>
__device__ HeadState rescale(const float (*references)[kHeads], const float (*sums)[kHeads],
                             float (*shrinks)[kHeads], int count, int head) {
  HeadState all{kMinusInfinity, 0};
  for (int i = 0; i < count; ++i) all.reference = fmaxf(all.reference, references[i][head]);
  for (int i = 0; i < count; ++i) {
    // A partial result without positions has no reference.
    const float own = references[i][head];
    const float shrink = own == kMinusInfinity ? 0.0f : exp2f(own - all.reference);
    shrinks[i][head] = shrink;
    all.sum += sums[i][head] * shrink;
  }
  return all;
}

/// Partial results of the warps in shared memory, added in the order of the warps.
template <int kHeads, int kValue>
struct WarpResults {
  float values[kWarps][kHeads][kValue + 1];  // padded: heads begin at different banks
  float references[kWarps][kHeads], sums[kWarps][kHeads], shrinks[kWarps][kHeads];

  /// Stores the results of this warp, whose sums are finished.
  template <class Tile>
  __device__ __forceinline__ void store(const DecodeHeads<Tile, kHeads / 8>& heads) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int t = 0; t < kHeads / 8; ++t) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          values[warp][8 * t + 2 * lane_pair() + c % 2][Tile::value_column(n, c / 2)] =
              heads.acc[t][n][c];
      }
    }
    if (lane_row() != 0) return;
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      const int head = i / 2 * 8 + 2 * lane_pair() + i % 2;
      references[warp][head] = heads.softmax[i / 2].reference[i % 2];
      sums[warp][head] = heads.softmax[i / 2].sum[i % 2];
    }
  }
  __device__ HeadState rescale(int head) {
    return cuda::rescale<kHeads>(references, sums, shrinks, kWarps, head);
  }
  __device__ float value(int head, int column) const {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += values[w][head][column] * shrinks[w][head];
    return sum;
  }
};

}  // namespace moracle::cuda
