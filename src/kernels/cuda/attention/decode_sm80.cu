// Decode attention with mma.sync and split-KV. Keys and values go from the cache straight to
// registers.
#include "kernels/cuda/attention/decode_heads.cuh"
#include "kernels/cuda/attention/split_kv.cuh"

namespace moracle::cuda {
namespace {

/// 32 positions in global memory. A lane takes columns that are adjacent in the cache: 8 of each 32
/// of keys, 8 of each 64 of values.
template <int kHeadDim, int kValueDim, DType kCache>
class GlobalTile {
 public:
  static constexpr int kHead = kHeadDim, kValue = kValueDim, kBlocks = 2;
  static constexpr bool kLazy = false;
  static_assert(kHead % 32 == 0 && kValue % 64 == 0);

  /// The rows begin at position `first` of a view that ends at `end`.
  __device__ GlobalTile(const KvRows& rows, int32_t first, int32_t end)
      : keys_(rows.keys + lane_row() * Cached::kKeyBytes + 8 * lane_pair() * kSize),
        values_(rows.values + 2 * lane_pair() * Cached::kValueBytes + 8 * lane_row() * kSize),
        first_(first + 2 * lane_pair()),
        end_(end) {}

  __device__ static int query_pair(int i, int half) {
    return i / 2 * 16 + 4 * lane_pair() + i % 2 * 2 + half;
  }
  __device__ static int value_column(int n, int half) {
    return n / 4 * 64 + 8 * lane_row() + n % 4 * 2 + half;
  }
  __device__ __forceinline__ void load_keys(int block, int i, uint32_t (&to)[4]) {
    if (i % 2 == 0) {
      const std::byte* const key = keys_ + 16 * block * Cached::kKeyBytes + 16 * i * kSize;
      upper_[block] = load_eight<kCache>(key);
      lower_[block] = load_eight<kCache>(key + 8 * Cached::kKeyBytes);
    }
    const uint4 &a = upper_[block], &b = lower_[block];
    to[0] = i % 2 == 0 ? a.x : a.z, to[1] = i % 2 == 0 ? b.x : b.z;
    to[2] = i % 2 == 0 ? a.y : a.w, to[3] = i % 2 == 0 ? b.y : b.w;
  }
  /// Loads the values early, before their weights are known.
  __device__ __forceinline__ void prefetch_values() {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = 16 * block + r % 2 + r / 2 * 8;
        const bool valid = first_ + row < end_;
#pragma unroll
        for (int b = 0; b < kValue / 64; ++b) {
          eights_[block][b][r] = uint4{};
          if (valid)
            eights_[block][b][r] =
                load_eight<kCache>(values_ + row * Cached::kValueBytes + 64 * b * kSize);
        }
      }
    }
  }
  /// Two adjacent columns of four positions.
  __device__ __forceinline__ void load_values(int block, int n, uint32_t (&to)[4]) const {
    uint32_t row[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint4& eight = eights_[block][n / 4][r];
      row[r] = n % 4 == 0 ? eight.x : n % 4 == 1 ? eight.y : n % 4 == 2 ? eight.z : eight.w;
    }
    to[0] = __byte_perm(row[0], row[1], 0x5410), to[1] = __byte_perm(row[0], row[1], 0x7632);
    to[2] = __byte_perm(row[2], row[3], 0x5410), to[3] = __byte_perm(row[2], row[3], 0x7632);
  }

 private:
  using Cached = CachedHead<kHead, kValue, kCache>;
  static constexpr int kSize = cache_element(kCache);
  const std::byte *const keys_, *const values_;  // of this lane
  const int32_t first_, end_;
  uint4 upper_[2], lower_[2];  // rows g and g + 8 of a block of keys
  uint4 eights_[2][kValue / 64][4];
};

template <int kHead, int kValue, DType kCache, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 2) attend_decode_sm80(SplitArgs f) {
  pdl_wait();
  pdl_launch_dependents();
  constexpr int kHeads = 8 * kTiles;
  using Tile = GlobalTile<kHead, kValue, kCache>;
  __shared__ WarpResults<kHeads, kValue> warps;
  __shared__ HeadState states[kHeads];
  const AttendArgs& a = f.attend;
  const AttentionShape& shape = a.shape;
  const auto heads = static_cast<uint32_t>(heads_per_kv(shape));
  const uint32_t head_tiles = (heads + kHeads - 1) / kHeads;
  const auto kv_heads = static_cast<uint32_t>(shape.num_kv_heads);
  const auto most_splits = static_cast<uint32_t>(f.splits), of_split = kv_heads * head_tiles;
  const uint32_t warp = threadIdx.x / 32, blocks = of_split * most_splits * f.tokens;
  for (uint32_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    // Consecutive CTAs take heads that are adjacent in memory.
    const uint32_t kv = b % kv_heads, first_head = b / kv_heads % head_tiles * kHeads;
    const uint32_t split = b / of_split % most_splits, slot = b / of_split / most_splits;
    const int64_t token = f.first_token + slot;
    const int32_t sequence = a.batch.sequences[token];
    const View view = view_of(a.batch, shape, token);
    const Splits splits = splits_of(view);
    if (split >= static_cast<uint32_t>(splits.count) ||
        (!shape.batch_invariant && !is_decode(a.batch, sequence)))
      continue;
    DecodeHeads<Tile, kTiles> own;
    own.load_queries(a, token, first_head, heads, kv);
    const CachedHead<kHead, kValue, kCache> cached(a, sequence, kv);
    const int32_t first = splits.first + static_cast<int32_t>(split) * splits.size;
    const int32_t end = min(first + splits.size, splits.end);
    for (int32_t tile = first + static_cast<int32_t>(warp); tile < end; tile += kWarps) {
      const int32_t position = tile * kTile;
      own.take(Tile(cached.at(position), position, view.end), position, view, shape.scale * kLog2E);
    }
    own.finish();
    __syncthreads();  // wait until the previous iteration has been merged
    warps.store(own);
    __syncthreads();
    const uint32_t rows = min(static_cast<uint32_t>(kHeads), heads - first_head);
    if (threadIdx.x < rows) states[threadIdx.x] = warps.rescale(static_cast<int>(threadIdx.x));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * kValue; i += kThreads) {
      const uint32_t row = i / kValue, c = i % kValue, head = kv * heads + first_head + row;
      const float value = warps.value(row, c);
      const HeadState& state = states[row];
      if (splits.count == 1) {
        const WithSink all = with_sink(shape, head, state.reference, state.sum);
        store_bf16(a.out, token, head * kValue + c, value * all.shrink / all.sum);
        continue;
      }
      const SplitResults to = results_of(f, slot, head, split);
      to.values[c] = value;
      if (c == 0) to.states[0] = state.reference, to.states[1] = state.sum;
    }
  }
}

template <int kHead, int kValue, DType kCache, int kTiles>
Status launch_tiles(const AttendArgs& a, const Queue& queue, Stream stream) {
  const AttentionShape& shape = a.shape;
  // A view that begins within a tile takes up to two tiles more.
  const int64_t seen = std::min(a.batch.longest, shape.most_seen(a.batch.longest) + 2 * kTile);
  const int64_t splits = most_splits(seen);
  const auto scratch = static_cast<int64_t>(attend_scratch_bytes(shape, a.q.rows, DType::kBF16));
  const int64_t together = splits == 1 ? a.q.rows : scratch / result_bytes(shape, splits);
  const int64_t head_tiles = (shape.num_heads / shape.num_kv_heads + 8 * kTiles - 1) / (8 * kTiles);
  for (int64_t first = 0; first < a.q.rows; first += together) {
    const SplitArgs args{a, first, std::min(together, a.q.rows - first), splits};
    MORACLE_CHECK(launch_early(
        queue, stream, "attend_decode_sm80", attend_decode_sm80<kHead, kValue, kCache, kTiles>,
        splits * head_tiles * shape.num_kv_heads * args.tokens, kThreads, 0, args));
    if (splits == 1) continue;
    MORACLE_CHECK(launch_early(queue, stream, "attend_merge_splits", attend_merge_splits<kValue>,
                               args.tokens * shape.num_heads, kThreads, 0, args));
  }
  return {};
}

}  // namespace

Status launch_decode_sm80(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    if (args.shape.num_heads / args.shape.num_kv_heads <= 8)
      return launch_tiles<kHead, kValue, kCache, 1>(args, queue, stream);
    return launch_tiles<kHead, kValue, kCache, 2>(args, queue, stream);
  });
}

}  // namespace moracle::cuda
