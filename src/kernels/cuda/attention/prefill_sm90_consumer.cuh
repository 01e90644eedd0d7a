// Attention of prompts on Hopper: scores, weights and sums of a warpgroup's 64 queries.
#pragma once

#include <bit>

#include "kernels/cuda/attention/prefill_sm90_products.cuh"
#include "kernels/cuda/attention/prefill_sm90_tiles.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

/// Lane 4 g + k of a warp holds rows g and g + 8 of its 16 queries, and columns 2 k and 2 k + 1 of
/// each 8.
template <int kHead, int kValue, DType kCache>
class QuerySums {
 public:
  using Ring = BlockRing<kHead, kValue, kCache>;
  static constexpr int kPositions = Ring::kPositions;

  /// Waits for the next tile. False: there is none.
  __device__ static bool await_tile(const Ring& ring) {
    mbarrier_wait(ring.queries_there(), ring.query_parity);
    return row_at(ring.rows(), 0).begin >= 0;
  }

  __device__ __forceinline__ QuerySums(const AttendArgs& a, Ring& ring)
      : a_(a), rows_(ring.rows()), own_(static_cast<int>(threadIdx.x) / 32 * 16) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = own_ + lane % 16;
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      const int eight = 2 * i + lane / 16;
      ldmatrix_x4(query_[i], ring.queries() + eight / 8 * Ring::kQueryAtomBytes + row * 128 +
                                 ((eight % 8 ^ row % 8) << 4));
    }
    mbarrier_arrive(ring.queries_read());
    ring.query_parity ^= 1;
  }

  /// Goes through the blocks of the tile. WgmmaTypes of a block's keys are issued before those of
  /// the earlier block's values, which then run while the scores become weights.
  __device__ __forceinline__ void run(Ring& ring, Turn turn) {
    const QueryRow first = row(0), last = row(kQueries - 1);
    const QueryRow least = row(turn.group * kGroupQueries),
                   most = row(turn.group * kGroupQueries + kGroupQueries - 1);
    const int32_t start = first.begin / kPositions * kPositions;
    const int32_t blocks = (last.end - start + kPositions - 1) / kPositions;
    // All queries of the group see all positions of the blocks [whole, masked).
    const int32_t whole = (most.begin - start + kPositions - 1) / kPositions;
    const int32_t masked = (least.end - start) / kPositions;
    mbarrier_wait(ring.keys_there(), ring.parity);
    turn.await();
    multiply_keys(ring.keys());
    turn.pass();
    wgmma_wait<0>();
    pin(scores_);
    release(ring.keys_read());
    weigh<true>(start);
    keep_weights();
    int32_t block = 1;
    for (; block < min(whole, blocks); ++block) next<true>(ring, turn, start + block * kPositions);
    for (; block < masked; ++block) next<false>(ring, turn, start + block * kPositions);
    for (; block < blocks; ++block) next<true>(ring, turn, start + block * kPositions);
    mbarrier_wait(ring.values_there(), ring.parity);
    multiply_values(ring.values());
    wgmma_wait<0>();
    pin(found_);
    release(ring.values_read());
    ring.advance();
  }

  __device__ __forceinline__ void store() {
    const int k = lane_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 2);
      const QueryRow query = row(own_ + lane_row() + 8 * half);
      const WithSink all = with_sink(a_.shape, query.head, reference_[half], sum_[half]);
      const float factor = all.shrink / all.sum;
      auto* const to =
          static_cast<uint16_t*>(a_.out.data) + query.token * a_.out.stride + query.head * kValue;
#pragma unroll
      for (int n = 0; n < kValue / 8; n += 4) {
        uint32_t eight[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          eight[i] = to_bf16_pair(found_[4 * (n + i) + 2 * half] * factor,
                                  found_[4 * (n + i) + 2 * half + 1] * factor);
        transpose_pairs(eight);
        if (query.token >= 0)
          *reinterpret_cast<uint4*>(to + 8 * (n + k)) = {eight[0], eight[1], eight[2], eight[3]};
      }
    }
  }

 private:
  // Scores may exceed the reference by this much (base 2) before it moves. Weights stay below 2^8.
  static constexpr float kSlack = 8;
  __device__ static int lane_row() {
    return static_cast<int>(threadIdx.x) % 32 / 4;
  }
  __device__ static int lane_column() {
    return static_cast<int>(threadIdx.x) % 4;
  }

  __device__ QueryRow row(int number) const {
    return row_at(rows_, number);
  }
  __device__ static QueryRow row_at(uint32_t rows, int number) {
    return std::bit_cast<QueryRow>(
        load_shared_16(rows + number * static_cast<int>(sizeof(QueryRow))));
  }
  template <bool kMasked>
  __device__ __forceinline__ void next(Ring& ring, Turn turn, int32_t first) {
    const Ring before = ring;
    ring.advance();
    mbarrier_wait(ring.keys_there(), ring.parity);
    turn.await();
    multiply_keys(ring.keys());
    mbarrier_wait(before.values_there(), before.parity);
    multiply_values(before.values());
    turn.pass();
    wgmma_wait<1>();
    pin(scores_);
    release(ring.keys_read());
    weigh<kMasked>(first);
    wgmma_wait<0>();
    pin(found_);
    release(before.values_read());
    if (__any_sync(kAllLanes, shrink_[0] != 1 || shrink_[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kValue / 2; ++i) found_[i] *= shrink_[i % 4 / 2];
    }
    keep_weights();
  }

  __device__ __forceinline__ void multiply_keys(uint32_t keys) {
    pin(scores_);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i)
      wgmma<WgmmaTypes::kBf16, kPositions>(
          scores_, query_[i], swizzled_descriptor(keys + i / 4 * Ring::kAtomBytes + i % 4 * 32),
          i > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_values(uint32_t values) {
    pin(found_);
    wgmma_fence();
#pragma unroll
    for (int p = 0; p < kPositions / 16; ++p)
      wgmma<WgmmaTypes::kBf16, kValue, true>(
          found_, weights_[p], swizzled_descriptor<Ring::kAtomBytes>(values + p * 2048), true);
    wgmma_commit();
  }

  /// Online softmax with a reference that moves only when scores exceed it by far. Scores become
  /// weights; `shrink_` is the factor that earlier sums of values need.
  template <bool kMasked>
  __device__ __forceinline__ void weigh(int32_t first) {
    const float scale = a_.shape.scale * kLog2E;
    float most[2][2] = {{nothing(), nothing()}, {nothing(), nothing()}};
    QueryRow query[2];
    if constexpr (kMasked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) query[half] = row(own_ + lane_row() + 8 * half);
    }
#pragma unroll
    for (int i = 0; i < kPositions / 2; ++i) {
      const int half = i % 4 / 2;
      if constexpr (kMasked) {
        const int32_t position = first + i / 4 * 8 + 2 * lane_column() + i % 2;
        if (position < query[half].begin || position >= query[half].end) scores_[i] = nothing();
      }
      most[half][i % 2] = fmaxf(most[half][i % 2], scores_[i]);
    }
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = fmaxf(most[half][0], most[half][1]);
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2)) * scale;
      const float now = largest > reference_[half] + kSlack ? largest : reference_[half];
      // A row that has seen no position yet has no reference.
      base[half] = kMasked && now == nothing() ? 0.0f : now;
      shrink_[half] = exp2_approx(reference_[half] - base[half]);
      reference_[half] = now;
      sum_[half] *= shrink_[half];
    }
#pragma unroll
    for (int i = 0; i < kPositions / 2; ++i) {
      const int half = i % 4 / 2;
      scores_[i] = exp2_approx(fmaf(scores_[i], scale, -base[half]));
      sum_[half] += scores_[i];
    }
  }
  __device__ __forceinline__ void keep_weights() {
#pragma unroll
    for (int p = 0; p < kPositions / 16; ++p) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weights_[p][r] = to_bf16_pair(scores_[8 * p + 2 * r], scores_[8 * p + 2 * r + 1]);
    }
  }
  __device__ static void release(uint32_t barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
  }

  const AttendArgs& a_;
  const uint32_t rows_;  // of the tile, in shared memory
  const int32_t own_;    // first row of this warp in the tile
  uint32_t query_[kHead / 16][4], weights_[kPositions / 16][4];
  float scores_[kPositions / 2] = {};
  float found_[kValue / 2] = {};  // not yet divided by `sum_`
  float reference_[2] = {nothing(), nothing()}, sum_[2] = {}, shrink_[2];
};

}  // namespace moracle::cuda
