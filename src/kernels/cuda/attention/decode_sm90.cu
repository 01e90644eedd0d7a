// Attention for sequences with few tokens in a step, on Hopper, in clusters of blocks. The pages of
// a token's view are shared evenly by the blocks of a cluster. Copies of pages that earlier steps
// wrote begin before the kernel before this one is complete. The blocks merge their results through
// distributed shared memory, each for some of the outputs, in the order of the blocks.
#include "kernels/cuda/attention/decode_sm90_bytes.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {
namespace {

constexpr int kMostBlocks = 16;  // of a cluster; more than 8 need the kernel's consent
constexpr int kInvariantBlocks = 8;
constexpr int kPerSm = 2;  // blocks that a multiprocessor runs
constexpr int kRingBytes = 96 * 1024;

template <int kHead, int kValue, int kSize>
constexpr int stages() {
  return kRingBytes / (kPagePositions * (kHead + kValue) * kSize);
}

/// Shared memory: the ring, then in its place the results of the warps; what the blocks of a
/// cluster send to this one.
template <int kHead, int kValue, int kTiles, int kSize>
struct StreamShared {
  static constexpr int kHeads = 8 * kTiles, kStages = stages<kHead, kValue, kSize>();
  union {
    PageRing<kHead, kValue, kStages, kSize> rings[kWarps];
    struct {
      float values[kWarps][kHeads][kValue + 1];  // padded: heads begin at different banks
      float references[kWarps][kHeads], sums[kWarps][kHeads], shrinks[kWarps][kHeads];
    } warps;
  };
  // [block][own outputs], [block][head]
  float values[kHeads * kValue + kMostBlocks];
  float references[kMostBlocks][kHeads], sums[kMostBlocks][kHeads], shrinks[kMostBlocks][kHeads];
};

struct Rescaled {
  float reference, sum;
};
/// Rescales the results of `count` warps or blocks to the largest reference of each head. Returns
/// that reference and the sum of weights to the threads of the first heads.
template <int kHeads>
__device__ Rescaled rescale(const float (*references)[kHeads], const float (*sums)[kHeads],
                            float (*shrinks)[kHeads], int count, int head) {
  float most = nothing(), sum = 0;
  for (int i = 0; i < count; ++i) most = fmaxf(most, references[i][head]);
  for (int i = 0; i < count; ++i) {
    // What has seen no position has no reference.
    const float own = references[i][head], shrink = own == nothing() ? 0.0f : exp2f(own - most);
    shrinks[i][head] = shrink;
    sum += sums[i][head] * shrink;
  }
  return {most, sum};
}

/// Adds the results of the warps, in their order, and sends each block of the cluster those of its
/// outputs: `each` in turn, of `outputs`.
template <int kHead, int kValue, int kTiles, int kSize, class Sums>
__device__ void merge_warps(StreamShared<kHead, kValue, kTiles, kSize>& shared, Sums& sums,
                            int part, int blocks, int each, int outputs) {
  constexpr int kHeads = 8 * kTiles;
  auto& warps = shared.warps;
  const int warp = threadIdx.x / 32;
  sums.finish();
  cp_async_wait<0>();
  __syncthreads();  // no warp reads its ring any more
  sums.each_found([&](int head, int c, float value) { warps.values[warp][head][c] = value; });
  if (sums.row() == 0) {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int head = i / 2 * 8 + 2 * sums.turn() + i % 2;
      warps.references[warp][head] = sums.reference[i / 2][i % 2];
      warps.sums[warp][head] = sums.sum[i / 2][i % 2];
    }
  }
  __syncthreads();
  const int head = static_cast<int>(threadIdx.x);
  if (head < kHeads) {
    const Rescaled all = rescale<kHeads>(warps.references, warps.sums, warps.shrinks, kWarps, head);
    for (int b = 0; b < blocks; ++b) {
      store_cluster(shared_address(&shared.references[part][head]), b, all.reference);
      store_cluster(shared_address(&shared.sums[part][head]), b, all.sum);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < outputs; i += kThreads) {
    const int row = i / kValue, c = i % kValue, owner = i / each;
    float value = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += warps.values[w][row][c] * warps.shrinks[w][row];
    store_cluster(shared_address(&shared.values[part * each + i - owner * each]), owner, value);
  }
}

struct StreamArgs {
  AttendArgs attend;
  int blocks;  ///< of a cluster
};

template <int kHead, int kValue, DType kCache, int kTiles>
__global__ void __launch_bounds__(kThreads, kPerSm) attend_stream(const StreamArgs f) {
#if __CUDA_ARCH__ >= 900
  using Cache = Streamed<kHead, kValue, kCache, kTiles>;
  using Shared = StreamShared<kHead, kValue, kTiles, Cache::kSize>;
  constexpr int kStages = Shared::kStages, kHeads = 8 * kTiles;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const auto heads = static_cast<int>(heads_per_kv(shape));
  const int row_tiles = (heads + kHeads - 1) / kHeads;
  const auto kv_heads = static_cast<int>(shape.num_kv_heads);
  const int part = static_cast<int>(blockIdx.x) % f.blocks;
  const int item = static_cast<int>(blockIdx.x) / f.blocks;
  const int kv = item % kv_heads, first_head = item / kv_heads % row_tiles * kHeads;
  const int64_t token = item / kv_heads / row_tiles;
  const int warp = threadIdx.x / 32;

  // Tables and older pages were complete before the kernel before this one began.
  const int32_t sequence = a.batch.sequences[token];
  if (!shape.batch_invariant && !is_few(a.batch, sequence)) return;  // the whole cluster
  cluster_arrive();
  const View view = view_of(a.batch, shape, token);
  const std::byte* const* const pages = a.batch.pages + a.batch.first_page[sequence];
  const int32_t fresh = a.batch.positions[a.batch.first_token[sequence]] / kPagePositions;
  const int32_t first = view.begin / kPagePositions;
  const int32_t count = (view.end + kPagePositions - 1) / kPagePositions - first;
  const int32_t begin = first + count * part / f.blocks,
                end = first + count * (part + 1) / f.blocks;
  auto& ring = shared.rings[warp];
  const std::byte* some = nullptr;  // this lane's of the next 32 pages
  const auto ask = [&](int32_t page) {
    const int at = (page - begin) % 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (at == 0) some = pages[min(page + lane, end - 1)];
    const auto here = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(some), at));
    const int slot = (page - begin) % kStages;
    const int64_t row = kv * kPagePositions + warp * kStreamRows;
    constexpr int kSize = cache_element(kCache);
    const int there = view.end - page * kPagePositions - warp * kStreamRows;
    Cache::copy(ring.keys[slot], ring.values[slot],
                {here + shape.cache.keys + row * (kHead * kSize),
                 here + shape.cache.values + row * (kValue * kSize)},
                there);
  };
  int32_t asked = begin;
  const int32_t ahead = min(begin + kStages - 1, end);
  for (; asked < min(ahead, fresh); ++asked) {
    ask(asked);
    cp_async_commit();
  }
  pdl_wait();
  pdl_launch_dependents();
  typename Cache::Sums sums;
  sums.load_queries(a, token, first_head, heads, kv);
  for (; asked < begin + kStages - 1; ++asked) {
    if (asked < end) ask(asked);
    cp_async_commit();
  }
  for (int32_t page = begin; page < end; ++page, ++asked) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    if (asked < end) ask(asked);  // into the slot that was read last
    cp_async_commit();
    const int slot = (page - begin) % kStages;
    sums.take(ring.keys[slot], ring.values[slot], page * kPagePositions + warp * kStreamRows, view,
              shape.scale * kLog2E);
  }
  const int outputs = min(kHeads, heads - first_head) * kValue;
  const int each = (outputs + f.blocks - 1) / f.blocks;
  cluster_wait();  // the shared memory of all blocks is there
  merge_warps(shared, sums, part, f.blocks, each, outputs);
  cluster_arrive();
  cluster_wait();
  __shared__ float factors[kHeads];
  if (threadIdx.x < kHeads) {
    const int row = static_cast<int>(threadIdx.x);
    const Rescaled own =
        rescale<kHeads>(shared.references, shared.sums, shared.shrinks, f.blocks, row);
    const int head = kv * heads + min(first_head + row, heads - 1);
    const WithSink all = with_sink(shape, head, own.reference, own.sum);
    factors[row] = all.shrink / all.sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < min(each, outputs - part * each); i += kThreads) {
    const int at = part * each + i, row = at / kValue, head = kv * heads + first_head + row;
    float value = 0;
    for (int b = 0; b < f.blocks; ++b)
      value += shared.values[b * each + i] * shared.shrinks[b][row];
    store_bf16(a.out, token, head * kValue + at % kValue, value * factors[row]);
  }
#endif
}

// Blocks of a cluster: a power of two, so many that the items fill the GPU. Large clusters leave
// multiprocessors of each group of them (GPC) without one, so they get three quarters of the GPU:
// what does not fit at once takes twice as long.
int blocks_for(const AttendArgs& a, int64_t items, const Queue& queue) {
  if (a.shape.batch_invariant) return kInvariantBlocks;
  const int64_t pages = (a.batch.longest + kPagePositions - 1) / kPagePositions;
  const int64_t room = int64_t{kPerSm} * queue.multiprocessors;
  int blocks = 1;
  while (2 * blocks <= kMostBlocks && 2 * blocks <= pages &&
         2 * blocks * items <= (blocks == 1 ? room : room * 3 / 4))
    blocks *= 2;
  return blocks;
}

template <int kHead, int kValue, DType kCache, int kTiles>
Status stream(const AttendArgs& a, const Queue& queue, Stream stream) {
  const auto kernel = attend_stream<kHead, kValue, kCache, kTiles>;
  constexpr size_t kShared =
      sizeof(StreamShared<kHead, kValue, kTiles, Streamed<kHead, kValue, kCache, kTiles>::kSize>);
  const auto* const function = reinterpret_cast<const void*>(kernel);
  {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CUDA(
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    MORACLE_CUDA(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  const int64_t heads = a.shape.num_heads / a.shape.num_kv_heads;
  const int64_t items = a.q.rows * a.shape.num_kv_heads * ((heads + 8 * kTiles - 1) / (8 * kTiles));
  const StreamArgs args{a, blocks_for(a, items, queue)};
  return launch_clusters(queue, stream, "attend_stream", kernel, items * args.blocks, args.blocks,
                         kThreads, kShared, args);
}

}  // namespace

Status attend_few_in_clusters(const AttendArgs& args, const Queue& queue, Stream on) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    if (args.shape.num_heads / args.shape.num_kv_heads <= 8)
      return stream<kHead, kValue, kCache, 1>(args, queue, on);
    return stream<kHead, kValue, kCache, 2>(args, queue, on);
  });
}

}  // namespace moracle::cuda
