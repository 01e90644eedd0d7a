// Prefill attention with mma.sync (Dao, "FlashAttention-2", 2023). A CTA takes 64 queries of one KV
// head: all heads that share its keys, token by token. Each warp takes 16 of these queries. The CTA
// goes through the visible positions page by page, and copies the next page to shared memory while
// it multiplies the current one.
#include "kernels/cuda/attention/online_softmax.cuh"
#include "kernels/cuda/attention/prefill_tiles.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {
namespace {

constexpr int kWarpQueries = 16, kQueries = kWarps * kWarpQueries;
constexpr int kPositions = kPagePositions;  // of a step

/// Accumulators of a warp's 16 queries. Lane 4 g + k holds rows g and g + 8, and columns 2 k and
/// 2 k + 1 of each 8.
template <int kHead, int kValue>
struct WarpTile {
  using Slot = KvSlot<kPositions, kHead, kValue, 2>;
  uint32_t query[kHead / 16][4];
  float acc[kValue / 8][4] = {};  // not yet divided by the sum of weights
  QuerySoftmax softmax;
  View view[2] = {};

  /// Sets row `half` of this lane's two. A row without a query sees nothing.
  __device__ void set(int half, const uint16_t* from, const View& seen) {
    view[half] = seen;
    const auto* const pairs = reinterpret_cast<const uint32_t*>(from);
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      query[i][half] = from != nullptr ? pairs[8 * i + lane_pair()] : 0;
      query[i][half + 2] = from != nullptr ? pairs[8 * i + lane_pair() + 4] : 0;
    }
  }

  /// Adds the positions of a page. `whole`: all queries see all of them.
  __device__ void take(const Slot& page, int32_t first, bool whole, float scale) {
    const int lane = threadIdx.x % 32;
    float scores[kPositions / 8][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
#pragma unroll
      for (int n = 0; n < kPositions / 8; ++n) {
        uint32_t keys[4];
        ldmatrix_x4(keys, page.keys + swizzled<kHead / 8>(8 * n + lane % 8, 4 * i + lane / 8));
        mma_bf16(scores[n], query[2 * i], keys[0], keys[1]);
        mma_bf16(scores[n], query[2 * i + 1], keys[2], keys[3]);
      }
    }
    uint32_t weights[kPositions / 16][4];
    weigh(scores, weights, first, whole, scale);
#pragma unroll
    for (int p = 0; p < kPositions / 16; ++p) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
        uint32_t values[4];
        ldmatrix_x4<true>(
            values, page.values + swizzled<kValue / 8>(16 * p + lane % 16, 2 * n + lane / 16));
        mma_bf16(acc[2 * n], weights[p], values[0], values[1]);
        mma_bf16(acc[2 * n + 1], weights[p], values[2], values[3]);
      }
    }
  }

 private:
  __device__ void weigh(float (&scores)[kPositions / 8][4], uint32_t (&weights)[kPositions / 16][4],
                        int32_t first, bool whole, float scale) {
    float most[2] = {softmax.reference[0], softmax.reference[1]}, shrink[2];
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] *= scale;
        const int32_t position = first + 8 * n + 2 * lane_pair() + c % 2;
        if (!whole && (position < view[c / 2].begin || position >= view[c / 2].end))
          scores[n][c] = kMinusInfinity;
        most[c / 2] = fmaxf(most[c / 2], scores[n][c]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) shrink[half] = softmax.raise(half, most[half]);
    if (__any_sync(kAllLanes, shrink[0] != 1 || shrink[1] != 1)) {
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[n][c] *= shrink[c / 2];
      }
      softmax.sum[0] *= shrink[0], softmax.sum[1] *= shrink[1];
    }
    const float base[2] = {softmax.base(0), softmax.base(1)};
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] = exp2f(scores[n][c] - base[c / 2]);
        softmax.sum[c / 2] += scores[n][c];
      }
      weights[n / 2][n % 2 * 2] = to_bf16_pair(scores[n][0], scores[n][1]);
      weights[n / 2][n % 2 * 2 + 1] = to_bf16_pair(scores[n][2], scores[n][3]);
    }
  }
};

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kThreads) attend_prefill_sm80(AttendArgs a, int64_t tiles) {
  extern __shared__ uint4 memory[];
  auto* const pages =
      reinterpret_cast<typename WarpTile<kHead, kValue>::Slot*>(memory);  // double buffer
  const AttentionShape& shape = a.shape;
  const int64_t all = tiles * shape.num_kv_heads * a.batch.num_sequences;
  QueryTile<kQueries> tile;
  for (int64_t b = blockIdx.x; b < all; b += gridDim.x) {
    if (!tile.find(a, b, tiles)) continue;
    WarpTile<kHead, kValue> own;
    const int32_t warp_row = tile.first_row + static_cast<int32_t>(threadIdx.x) / 32 * kWarpQueries;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = warp_row + lane_row() + 8 * half;
      if (row < tile.rows)
        own.set(half, query_of(a, tile.token_of(row), tile.head_of(row)), tile.view_of_row(a, row));
      else
        own.set(half, nullptr, {0, 0});
    }
    // Views advance with the rows: the first and last row bound the views of a warp.
    const View least = tile.view_of_row(a, warp_row),
               most = tile.view_of_row(a, warp_row + kWarpQueries - 1);
    const int32_t end = tile.last_seen(a);
    const CachedHead<kHead, kValue, kCache> cached(a, tile.sequence, tile.kv);
    const auto copy = [&](int32_t page) {
      const int32_t position = page * kPositions;
      copy_bf16<kCache, kThreads>(pages[page % 2], cached.at(position), end - position);
    };
    __syncthreads();  // wait until the pages of the previous iteration have been read
    copy(tile.begin);
    cp_async_commit();
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      const int32_t at = page * kPositions;
      if (page + 1 < tile.end) copy(page + 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      const bool any = warp_row < tile.rows && at < most.end && at + kPositions > least.begin;
      const bool whole =
          warp_row + kWarpQueries <= tile.rows && at >= most.begin && at + kPositions <= least.end;
      if (any) own.take(pages[page % 2], at, whole, shape.scale * kLog2E);
      __syncthreads();
    }
    own.softmax.finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = warp_row + lane_row() + 8 * half;
      if (row >= tile.rows) continue;
      const int64_t head = tile.head_of(row);
      const WithSink all =
          with_sink(shape, head, own.softmax.reference[half], own.softmax.sum[half]);
      const float factor = all.shrink / all.sum;
      auto* const to =
          static_cast<uint16_t*>(a.out.data) + tile.token_of(row) * a.out.stride + head * kValue;
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + 8 * n + 2 * lane_pair()) =
            to_bf16_pair(own.acc[n][2 * half] * factor, own.acc[n][2 * half + 1] * factor);
      }
    }
  }
}

}  // namespace

Status launch_prefill_sm80(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    const auto kernel = attend_prefill_sm80<kHead, kValue, kCache>;
    constexpr size_t kShared = 2 * sizeof(typename WarpTile<kHead, kValue>::Slot);
    MORACLE_CHECK(allow_shared_memory(queue, kernel, kShared));
    const int64_t tiles = most_tiles<kQueries>(args);
    return launch(queue, stream, "attend_prefill_sm80", kernel,
                  tiles * args.shape.num_kv_heads * args.batch.num_sequences, kThreads, kShared,
                  args, tiles);
  });
}

}  // namespace moracle::cuda
