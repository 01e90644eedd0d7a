// Prefill attention on Hopper: scores, weights and accumulators of a consumer warpgroup's 64
// queries.
#pragma once

#include <bit>

#include "kernels/cuda/attention/online_softmax.cuh"
#include "kernels/cuda/attention/prefill_sm90_ring.cuh"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"

namespace moracle::cuda {

/// Ping-pong: one warpgroup runs its softmax while wgmma of the other is in flight. They issue
/// products alternately; the second one calls `pass` once at the start.
struct PingPong {
  int group;
  __device__ void await() const { named_barrier_sync<kConsumers>(1 + group); }
  __device__ void pass() const { named_barrier_arrive<kConsumers>(2 - group); }
};

/// Transposes pairs among four lanes: lane k passes pair k of four rows and gets all pairs of row
/// k.
__device__ inline void transpose_pairs(uint32_t (&x)[4]) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const bool upper = (lane_pair() & step) != 0;
      const uint32_t got = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i + step], step);
      (upper ? x[i] : x[i + step]) = got;
    }
  }
}

/// One tile in a consumer warpgroup. Lane 4 g + k of a warp holds rows g and g + 8 of its 16
/// queries, and columns 2 k and 2 k + 1 of each 8.
template <int kHead, int kValue, DType kCache>
class Consumer {
 public:
  using Ring = PageRing<kHead, kValue, kCache>;
  static constexpr int kPositions = Ring::kPositions;

  /// Waits for the next tile. False: there is none.
  __device__ static bool await_tile(const Ring& ring) {
    mbarrier_wait(ring.queries_full(), ring.query_parity);
    return row_at(ring.rows(), 0).begin >= 0;
  }

  __device__ __forceinline__ Consumer(const AttendArgs& a, Ring& ring)
      : a_(a), rows_(ring.rows()), own_(static_cast<int>(threadIdx.x) / 32 * 16) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = own_ + lane % 16;
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      const int eight = 2 * i + lane / 16;
      ldmatrix_x4(query_[i], ring.queries() + eight / 8 * Ring::kQueryAtomBytes + row * 128 +
                                 ((eight % 8 ^ row % 8) << 4));
    }
    mbarrier_arrive(ring.queries_empty());
    ring.query_parity ^= 1;
  }

  /// Goes through the pages of the tile. Issues the products of a page's keys before those of the
  /// previous page's values: the latter are in flight during the softmax.
  __device__ __forceinline__ void run(Ring& ring, PingPong order) {
    const QueryRow first = row(0), last = row(kQueries - 1);
    const QueryRow least = row(order.group * kGroupQueries),
                   most = row(order.group * kGroupQueries + kGroupQueries - 1);
    const int32_t start = first.begin / kPositions * kPositions;
    const int32_t pages = (last.end - start + kPositions - 1) / kPositions;
    // All queries of the group see all positions of the pages [whole, masked).
    const int32_t whole = (most.begin - start + kPositions - 1) / kPositions;
    const int32_t masked = (least.end - start) / kPositions;
    mbarrier_wait(ring.keys_full(), ring.parity);
    order.await();
    multiply_keys(ring.keys());
    order.pass();
    wgmma_wait<0>();
    pin(scores_);
    release(ring.keys_empty());
    weigh<true>(start);
    keep_weights();
    int32_t page = 1;
    for (; page < min(whole, pages); ++page) next<true>(ring, order, start + page * kPositions);
    for (; page < masked; ++page) next<false>(ring, order, start + page * kPositions);
    for (; page < pages; ++page) next<true>(ring, order, start + page * kPositions);
    mbarrier_wait(ring.values_full(), ring.parity);
    multiply_values(ring.values());
    wgmma_wait<0>();
    pin(acc_);
    release(ring.values_empty());
    ring.advance();
  }

  __device__ __forceinline__ void store() {
    softmax_.finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const QueryRow query = row(own_ + lane_row() + 8 * half);
      const WithSink all =
          with_sink(a_.shape, query.head, softmax_.reference[half], softmax_.sum[half]);
      const float factor = all.shrink / all.sum;
      auto* const to =
          static_cast<uint16_t*>(a_.out.data) + query.token * a_.out.stride + query.head * kValue;
#pragma unroll
      for (int n = 0; n < kValue / 8; n += 4) {
        uint32_t eight[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          eight[i] = to_bf16_pair(acc_[4 * (n + i) + 2 * half] * factor,
                                  acc_[4 * (n + i) + 2 * half + 1] * factor);
        transpose_pairs(eight);
        if (query.token >= 0)
          *reinterpret_cast<uint4*>(to + 8 * (n + lane_pair())) = {eight[0], eight[1], eight[2],
                                                                   eight[3]};
      }
    }
  }

 private:
  __device__ QueryRow row(int number) const {
    return row_at(rows_, number);
  }
  __device__ static QueryRow row_at(uint32_t rows, int number) {
    return std::bit_cast<QueryRow>(
        load_shared_16(rows + number * static_cast<int>(sizeof(QueryRow))));
  }
  template <bool kMasked>
  __device__ __forceinline__ void next(Ring& ring, PingPong order, int32_t first) {
    const Ring before = ring;
    ring.advance();
    mbarrier_wait(ring.keys_full(), ring.parity);
    order.await();
    multiply_keys(ring.keys());
    mbarrier_wait(before.values_full(), before.parity);
    multiply_values(before.values());
    order.pass();
    wgmma_wait<1>();
    pin(scores_);
    release(ring.keys_empty());
    weigh<kMasked>(first);
    wgmma_wait<0>();
    pin(acc_);
    release(before.values_empty());
    if (__any_sync(kAllLanes, shrink_[0] != 1 || shrink_[1] != 1)) {
#pragma unroll
      for (int i = 0; i < kValue / 2; ++i) acc_[i] *= shrink_[i % 4 / 2];
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
    pin(acc_);
    wgmma_fence();
#pragma unroll
    for (int p = 0; p < kPositions / 16; ++p)
      wgmma<WgmmaTypes::kBf16, kValue, true>(
          acc_, weights_[p], swizzled_descriptor<Ring::kAtomBytes>(values + p * 2048), true);
    wgmma_commit();
  }

  /// Turns scores into weights; `shrink_` is the factor that rescales earlier sums of values. Takes
  /// the maximum before the scale, so that the scale and the reference are one fma.
  template <bool kMasked>
  __device__ __forceinline__ void weigh(int32_t first) {
    const float scale = a_.shape.scale * kLog2E;
    float most[2][2] = {{kMinusInfinity, kMinusInfinity}, {kMinusInfinity, kMinusInfinity}};
    QueryRow query[2];
    if constexpr (kMasked) {
#pragma unroll
      for (int half = 0; half < 2; ++half) query[half] = row(own_ + lane_row() + 8 * half);
    }
#pragma unroll
    for (int i = 0; i < kPositions / 2; ++i) {
      const int half = i % 4 / 2;
      if constexpr (kMasked) {
        const int32_t position = first + i / 4 * 8 + 2 * lane_pair() + i % 2;
        if (position < query[half].begin || position >= query[half].end)
          scores_[i] = kMinusInfinity;
      }
      most[half][i % 2] = fmaxf(most[half][i % 2], scores_[i]);
    }
    float base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float largest = softmax_.row_max(fmaxf(most[half][0], most[half][1])) * scale;
      float& reference = softmax_.reference[half];
      const float now = largest > reference + kReferenceSlack ? largest : reference;
      // A row that has seen no position has no reference yet.
      base[half] = kMasked && now == kMinusInfinity ? 0.0f : now;
      shrink_[half] = exp2_approx(reference - base[half]);
      reference = now;
      softmax_.sum[half] *= shrink_[half];
    }
#pragma unroll
    for (int i = 0; i < kPositions / 2; ++i) {
      const int half = i % 4 / 2;
      scores_[i] = exp2_approx(fmaf(scores_[i], scale, -base[half]));
      softmax_.sum[half] += scores_[i];
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
  float acc_[kValue / 2] = {};  // not yet divided by the sum of weights
  QuerySoftmax softmax_;
  float shrink_[2];
};

}  // namespace moracle::cuda
