// Attention for sequences with many tokens in a step (Dao, "FlashAttention-2", 2023). A block takes
// 64 queries of one KV head: all heads that share its keys, token by token. Each warp takes 16 of
// these queries. The block goes through the visible positions one page at a time. It copies the
// next page to shared memory while it multiplies the current page.
#include "kernels/cuda/attention/heads.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/ldmatrix.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {
namespace {

constexpr int kRows = 16;                   // queries of a warp
constexpr int kPositions = kPagePositions;  // positions processed at once

/// [kPositions, kColumns] of bf16 in shared memory, swizzled. Within each 128 bytes of a row, the
/// 16-byte pieces are permuted by the row. The same piece of eight consecutive rows thus lies in
/// different banks.
template <int kColumns>
struct Page {
  uint4 eights[kPositions * kColumns / 8];
  __device__ uint4* at(int row, int eight) {
    return eights + row * (kColumns / 8) + (eight ^ (row & 7));
  }
};
template <int kHead, int kValue>
struct Pages {
  Page<kHead> keys;
  Page<kValue> values;
};

/// Fetches positions [first, first + kPositions). Writes zeros from `end` on.
template <DType kCache, int kColumns>
__device__ void fetch(Page<kColumns>& to, const std::byte* from, int64_t step, int32_t first,
                      int32_t end) {
  constexpr int kEights = kColumns / 8, kSize = cache_element(kCache);
#pragma unroll
  for (int i = 0; i < kPositions * kEights / kThreads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kThreads;
    const int row = at / kEights, eight = at % kEights;
    const std::byte* const source = from + row * step + eight * 8 * kSize;
    const bool there = first + row < end;
    if constexpr (kCache == DType::kBF16)
      cp_async_16(to.at(row, eight), source, there);
    else
      *to.at(row, eight) = there ? load_eight<kCache>(source) : uint4{};
  }
}

/// Accumulators of a warp's 16 queries. Lane 4 g + k holds rows g and g + 8, and columns 2 k and 2
/// k + 1 of each 8.
template <int kHead, int kValue>
struct Finds {
  uint32_t query[kHead / 16][4];
  float found[kValue / 8][4] = {};
  float largest[2] = {nothing(), nothing()}, sum[2] = {};
  View view[2] = {};

  __device__ static int row() { return threadIdx.x % 32 / 4; }
  __device__ static int turn() { return threadIdx.x % 4; }

  /// Sets row `half` of this lane's two. Without a query, the row does not exist and sees nothing.
  __device__ void set(int half, const uint16_t* from, const View& seen) {
    view[half] = seen;
    const auto* const pairs = reinterpret_cast<const uint32_t*>(from);
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      query[i][half] = from != nullptr ? pairs[8 * i + turn()] : 0;
      query[i][half + 2] = from != nullptr ? pairs[8 * i + turn() + 4] : 0;
    }
  }

  __device__ void take(Pages<kHead, kValue>& pages, int32_t first, bool whole, float scale) {
    const int lane = threadIdx.x % 32;
    float scores[kPositions / 8][4] = {};
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
#pragma unroll
      for (int n = 0; n < kPositions / 8; ++n) {
        uint32_t keys[4];
        ldmatrix_x4(keys, pages.keys.at(8 * n + lane % 8, 4 * i + lane / 8));
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
        ldmatrix_x4<true>(values, pages.values.at(16 * p + lane % 16, 2 * n + lane / 16));
        mma_bf16(found[2 * n], weights[p], values[0], values[1]);
        mma_bf16(found[2 * n + 1], weights[p], values[2], values[3]);
      }
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 1);
      sum[half] += __shfl_xor_sync(kAllLanes, sum[half], 2);
    }
  }

 private:
  /// Online softmax: turns scores into weights relative to the largest score so far, and rescales
  /// the earlier results.
  __device__ void weigh(float (&scores)[kPositions / 8][4], uint32_t (&weights)[kPositions / 16][4],
                        int32_t first, bool whole, float scale) {
    float most[2] = {largest[0], largest[1]}, base[2], shrink[2];
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] *= scale;
        const int32_t position = first + 8 * n + 2 * turn() + c % 2;
        if (!whole && (position < view[c / 2].begin || position >= view[c / 2].end))
          scores[n][c] = nothing();
        most[c / 2] = fmaxf(most[c / 2], scores[n][c]);
      }
    }
    bool grown = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 2));
      // A row that has seen no position yet has no largest score.
      base[half] = most[half] == nothing() ? 0.0f : most[half];
      shrink[half] = exp2f(largest[half] - base[half]);
      grown = grown || most[half] != largest[half];
      largest[half] = most[half];
    }
    if (__any_sync(kAllLanes, grown)) {
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) found[n][c] *= shrink[c / 2];
      }
      sum[0] *= shrink[0], sum[1] *= shrink[1];
    }
#pragma unroll
    for (int n = 0; n < kPositions / 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        scores[n][c] = exp2f(scores[n][c] - base[c / 2]);
        sum[c / 2] += scores[n][c];
      }
      weights[n / 2][n % 2 * 2] = to_bf16_pair(scores[n][0], scores[n][1]);
      weights[n / 2][n % 2 * 2 + 1] = to_bf16_pair(scores[n][2], scores[n][3]);
    }
  }
};

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kThreads) attend_many(AttendArgs a, int64_t tiles) {
  extern __shared__ uint4 shared[];
  auto* const pages = reinterpret_cast<Pages<kHead, kValue>*>(shared);  // double buffer
  const AttentionShape& shape = a.shape;
  const int64_t heads = heads_per_kv(shape), warp = threadIdx.x / 32;
  const int64_t columns = shape.num_kv_heads * a.batch.num_sequences;
  for (int64_t b = blockIdx.x; b < tiles * columns; b += gridDim.x) {
    // Tiles with the largest views go first.
    const int64_t tile = tiles - 1 - b / columns, kv = b % shape.num_kv_heads;
    const auto sequence = static_cast<int32_t>(b % columns / shape.num_kv_heads);
    const int64_t first_token = a.batch.first_token[sequence];
    const int64_t rows = (a.batch.first_token[sequence + 1] - first_token) * heads;
    const int64_t first_row = tile * kWarps * kRows;
    if (is_few(a.batch, sequence) || first_row >= rows) continue;
    const auto view_of_row = [&](int64_t row) {
      return view_of(a.batch, shape, first_token + min(row, rows - 1) / heads);
    };
    Finds<kHead, kValue> finds;
    const int64_t own = first_row + warp * kRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = own + finds.row() + 8 * half;
      if (row < rows)
        finds.set(half, query_of(a, first_token + row / heads, kv * heads + row % heads),
                  view_of_row(row));
      else
        finds.set(half, nullptr, {0, 0});
    }
    // Views advance with the rows. The first and last rows of a warp bound its views; the same
    // holds for a block.
    const View least = view_of_row(own), most = view_of_row(own + kRows - 1);
    const int32_t begin = view_of_row(first_row).begin / kPositions;
    const int32_t end = view_of_row(first_row + kWarps * kRows - 1).end;
    const Heads<kHead, kValue, kCache> of(a, sequence);
    const auto ask = [&](int32_t page) {
      const Lines lines = of.at(kv, page * kPositions);
      Pages<kHead, kValue>& to = pages[page % 2];
      fetch<kCache>(to.keys, lines.keys, of.kKeyStep, page * kPositions, end);
      fetch<kCache>(to.values, lines.values, of.kValueStep, page * kPositions, end);
    };
    __syncthreads();  // wait until the pages of the previous iteration have been read
    ask(begin);
    cp_async_commit();
    for (int32_t page = begin; page * kPositions < end; ++page) {
      const int32_t at = page * kPositions;
      if (at + kPositions < end) ask(page + 1);
      cp_async_commit();
      cp_async_wait<1>();
      __syncthreads();
      const bool any = own < rows && at < most.end && at + kPositions > least.begin;
      const bool whole = own + kRows <= rows && at >= most.begin && at + kPositions <= least.end;
      if (any) finds.take(pages[page % 2], at, whole, shape.scale * kLog2E);
      __syncthreads();
    }
    finds.finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = own + finds.row() + 8 * half, head = kv * heads + row % heads;
      if (row >= rows) continue;
      const WithSink all = with_sink(shape, head, finds.largest[half], finds.sum[half]);
      const float factor = all.shrink / all.sum;
      auto* const to = static_cast<uint16_t*>(a.out.data) +
                       (first_token + row / heads) * a.out.stride + head * kValue;
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + 8 * n + 2 * finds.turn()) =
            to_bf16_pair(finds.found[n][2 * half] * factor, finds.found[n][2 * half + 1] * factor);
      }
    }
  }
}

}  // namespace

Status attend_many_tokens(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    const auto kernel = attend_many<kHead, kValue, kCache>;
    constexpr size_t kShared = 2 * sizeof(Pages<kHead, kValue>);
    {
      MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
      MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    }
    const int64_t group = args.shape.num_heads / args.shape.num_kv_heads;
    const int64_t tiles = (args.batch.most_tokens * group + kRows * kWarps - 1) / (kRows * kWarps);
    return launch(queue, stream, "attend_many", kernel,
                  tiles * args.shape.num_kv_heads * args.batch.num_sequences, kThreads, kShared,
                  args, tiles);
  });
}

}  // namespace moracle::cuda
