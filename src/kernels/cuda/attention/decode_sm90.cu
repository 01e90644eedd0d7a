// Decode attention on Hopper: split-KV over the CTAs of a cluster. The pages of a token's view are
// divided evenly among the CTAs. Copies of pages that earlier steps wrote begin before the previous
// kernel is complete (PDL). The CTAs reduce their partial results through distributed shared
// memory: each CTA adds some of the outputs, in the order of the CTAs.
#include "kernels/cuda/attention/decode_sm90_tiles.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace moracle::cuda {
namespace {

constexpr int kMaxCluster = 16;  // more than 8 CTAs need a non-portable cluster size
constexpr int kInvariantCluster = 8;
constexpr int kCtasPerSm = 2;
constexpr int kRingBytes = 96 * 1024;

/// Shared memory of a CTA: a ring for each warp, reused for the results of the warps. Behind it,
/// the results that the CTAs of the cluster send to this one.
template <class Tile, int kTiles>
struct ClusterShared {
  static constexpr int kHeads = 8 * kTiles, kValue = Tile::kValue;
  static constexpr int kStages = kRingBytes / (kWarps * sizeof(typename Tile::Slot));
  union {
    typename Tile::Slot rings[kWarps][kStages];
    WarpResults<kHeads, kValue> warps;
  };
  // [CTA][own outputs], [CTA][head]
  float values[kHeads * kValue + kMaxCluster];
  float references[kMaxCluster][kHeads], sums[kMaxCluster][kHeads], shrinks[kMaxCluster][kHeads];
};

/// Adds the results of the warps and sends every CTA its share: `each` of `outputs` outputs.
/// `rank`: the rank of this CTA.
template <class Tile, int kTiles>
__device__ void send_results(ClusterShared<Tile, kTiles>& shared, DecodeHeads<Tile, kTiles>& own,
                             int rank, int ctas, int each, int outputs) {
  own.finish();
  cp_async_wait<0>();
  __syncthreads();  // wait until all warps have read their rings
  shared.warps.store(own);
  __syncthreads();
  const int head = static_cast<int>(threadIdx.x);
  if (head < shared.kHeads) {
    const HeadState all = shared.warps.rescale(head);
    for (int cta = 0; cta < ctas; ++cta) {
      store_cluster(shared_address(&shared.references[rank][head]), cta, all.reference);
      store_cluster(shared_address(&shared.sums[rank][head]), cta, all.sum);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < outputs; i += kThreads) {
    const int owner = i / each;
    store_cluster(shared_address(&shared.values[rank * each + i - owner * each]), owner,
                  shared.warps.value(i / Tile::kValue, i % Tile::kValue));
  }
}

struct ClusterArgs {
  AttendArgs attend;
  int ctas;  ///< of a cluster
};

template <int kHead, int kValue, DType kCache, int kTiles>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) attend_decode_sm90(const ClusterArgs f) {
#if __CUDA_ARCH__ >= 900
  using Tile = RingTile<kHead, kValue, kCache>;
  using Shared = ClusterShared<Tile, kTiles>;
  constexpr int kStages = Shared::kStages, kHeads = 8 * kTiles;
  extern __shared__ __align__(1024) uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const auto heads = static_cast<int>(heads_per_kv(shape));
  const int head_tiles = (heads + kHeads - 1) / kHeads;
  const auto kv_heads = static_cast<int>(shape.num_kv_heads);
  const int rank = static_cast<int>(blockIdx.x) % f.ctas;
  const int item = static_cast<int>(blockIdx.x) / f.ctas;
  const int kv = item % kv_heads, first_head = item / kv_heads % head_tiles * kHeads;
  const int64_t token = item / kv_heads / head_tiles;
  const int warp = threadIdx.x / 32;

  // Tables and older pages were complete before the previous kernel began.
  const int32_t sequence = a.batch.sequences[token];
  if (!shape.batch_invariant && !is_decode(a.batch, sequence)) return;  // the whole cluster
  cluster_arrive();
  const View view = view_of(a.batch, shape, token);
  const CachedHead<kHead, kValue, kCache> cached(a, sequence, kv);
  const int32_t fresh = a.batch.positions[a.batch.first_token[sequence]] / kPagePositions;
  const int32_t first = view.begin / kPagePositions;
  const int32_t count = (view.end + kPagePositions - 1) / kPagePositions - first;
  const int32_t begin = first + count * rank / f.ctas, end = first + count * (rank + 1) / f.ctas;
  auto& ring = shared.rings[warp];
  const std::byte* fetched = nullptr;  // the address that this lane loaded: one of 32 pages
  const auto copy = [&](int32_t page) {
    const int at = (page - begin) % 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (at == 0) fetched = cached.pages[min(page + lane, end - 1)];
    const auto here = reinterpret_cast<const std::byte*>(
        __shfl_sync(kAllLanes, reinterpret_cast<unsigned long long>(fetched), at));
    const int row = warp * kWarpPositions;
    Tile::copy(ring[(page - begin) % kStages], cached.in_page(here, row),
               view.end - page * kPagePositions - row);
  };
  int32_t copied = begin;
  const int32_t ahead = min(begin + kStages - 1, end);
  for (; copied < min(ahead, fresh); ++copied) {
    copy(copied);
    cp_async_commit();
  }
  pdl_wait();
  pdl_launch_dependents();
  DecodeHeads<Tile, kTiles> own;
  own.load_queries(a, token, first_head, heads, kv);
  for (; copied < begin + kStages - 1; ++copied) {
    if (copied < end) copy(copied);
    cp_async_commit();
  }
  for (int32_t page = begin; page < end; ++page, ++copied) {
    cp_async_wait<kStages - 2>();
    __syncwarp();
    if (copied < end) copy(copied);  // into the slot that was read last
    cp_async_commit();
    own.take(Tile(ring[(page - begin) % kStages]), page * kPagePositions + warp * kWarpPositions,
             view, shape.scale * kLog2E);
  }
  const int outputs = min(kHeads, heads - first_head) * kValue;
  const int each = (outputs + f.ctas - 1) / f.ctas;
  cluster_wait();  // the shared memory of all CTAs exists
  send_results(shared, own, rank, f.ctas, each, outputs);
  cluster_arrive();
  cluster_wait();
  __shared__ float factors[kHeads];
  if (threadIdx.x < kHeads) {
    const int row = static_cast<int>(threadIdx.x);
    const HeadState state =
        rescale<kHeads>(shared.references, shared.sums, shared.shrinks, f.ctas, row);
    const int head = kv * heads + min(first_head + row, heads - 1);
    const WithSink all = with_sink(shape, head, state.reference, state.sum);
    factors[row] = all.shrink / all.sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < min(each, outputs - rank * each); i += kThreads) {
    const int at = rank * each + i, row = at / kValue, head = kv * heads + first_head + row;
    float value = 0;
    for (int cta = 0; cta < f.ctas; ++cta)
      value += shared.values[cta * each + i] * shared.shrinks[cta][row];
    store_bf16(a.out, token, head * kValue + at % kValue, value * factors[row]);
  }
#endif
}

// Cluster size: a power of two, large enough that the items fill the GPU. A large cluster must fit
// into one GPC and leaves some of its SMs idle. Plan such clusters on three quarters of the GPU,
// because a second wave doubles the time.
int cluster_size(const AttendArgs& a, int64_t items, const Queue& queue) {
  if (a.shape.batch_invariant) return kInvariantCluster;
  const int64_t pages = (a.batch.longest + kPagePositions - 1) / kPagePositions;
  const int64_t capacity = int64_t{kCtasPerSm} * queue.num_sms;
  int ctas = 1;
  while (2 * ctas <= kMaxCluster && 2 * ctas <= pages &&
         2 * ctas * items <= (ctas == 1 ? capacity : capacity * 3 / 4))
    ctas *= 2;
  return ctas;
}

template <int kHead, int kValue, DType kCache, int kTiles>
Status launch_tiles(const AttendArgs& a, const Queue& queue, Stream stream) {
  const auto kernel = attend_decode_sm90<kHead, kValue, kCache, kTiles>;
  constexpr size_t kShared = sizeof(ClusterShared<RingTile<kHead, kValue, kCache>, kTiles>);
  MORACLE_CHECK(allow_shared_memory(queue, kernel, kShared));
  {
    MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
    MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                      cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  const int64_t heads = a.shape.num_heads / a.shape.num_kv_heads;
  const int64_t items = a.q.rows * a.shape.num_kv_heads * ((heads + 8 * kTiles - 1) / (8 * kTiles));
  const ClusterArgs args{a, cluster_size(a, items, queue)};
  return launch_clusters(queue, stream, "attend_decode_sm90", kernel, items * args.ctas, args.ctas,
                         kThreads, kShared, args);
}

}  // namespace

Status launch_decode_sm90(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    if (args.shape.num_heads / args.shape.num_kv_heads <= 8)
      return launch_tiles<kHead, kValue, kCache, 1>(args, queue, stream);
    return launch_tiles<kHead, kValue, kCache, 2>(args, queue, stream);
  });
}

}  // namespace moracle::cuda
