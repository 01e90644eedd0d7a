// Attention for sequences with many tokens in a step, on Hopper's tensor cores (Shah et al.,
// "FlashAttention-3", 2024). A block takes 128 queries of one KV head: all heads that share its
// keys, token by token. One warpgroup copies pages of keys and values, two multiply 64 queries
// each. Blocks are persistent. While a warpgroup turns scores into weights, the other multiplies.
// Asking for the next scores before weighing these was slower: ptxas let all products wait (C7518).
#include "kernels/cuda/attention/attend_codes.cuh"
#include "kernels/cuda/attention/attend_tensor.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/gemm_sm90/barrier.cuh"
#include "kernels/cuda/gemm_sm90/wgmma.cuh"

namespace moracle::cuda {
namespace {

constexpr int kLoaders = 128, kComputers = 256, kAllThreads = kLoaders + kComputers;
constexpr int kGroupQueries = 64, kQueries = 2 * kGroupQueries;
constexpr int kLoaderRegisters = 56, kComputerRegisters = 224;

/// A ring of pages. Keys are [64 columns][position][128 bytes], swizzled, and so are values.
template <int kHead, int kValue>
struct PageTile {
  static constexpr int kAtomBytes = kPagePositions * 128;  // 64 columns of a page
  static constexpr int kKeyBytes = kHead / 64 * kAtomBytes, kValueBytes = kValue / 64 * kAtomBytes;
  static constexpr int kStages = 4, kStageBytes = kKeyBytes + kValueBytes;
  // Barriers of a stage: keys are there, values are there, both were read.
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr int kCodes = kBarriers + 128;  // codes of an fp8 cache
  static_assert(3 * 8 * kStages <= 128);

  uint32_t base;  // of shared memory, aligned to 1,024 bytes
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t keys() const { return base + slot * kStageBytes; }
  __device__ uint32_t values() const { return keys() + kKeyBytes; }
  __device__ uint32_t barrier(int which, int of_slot) const {
    return base + kBarriers + (which * kStages + of_slot) * 8;
  }
  __device__ uint32_t keys_there() const { return barrier(0, slot); }
  __device__ uint32_t values_there() const { return barrier(1, slot); }
  __device__ uint32_t was_read(int of_slot) const { return barrier(2, of_slot); }
  __device__ void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }
};

/// 128 queries of one KV head of a sequence.
struct QueryTile {
  int64_t first_token, first_row, rows, kv, heads;
  int32_t sequence;
  int32_t begin, end;  // pages that they see

  /// Tile `number`; those with the largest views come first. False: it has no queries.
  __device__ bool find(const AttendArgs& a, int64_t number, int64_t tiles) {
    const int64_t columns = a.shape.num_kv_heads * a.batch.num_sequences;
    heads = heads_per_kv(a.shape);
    kv = number % a.shape.num_kv_heads;
    sequence = static_cast<int32_t>(number % columns / a.shape.num_kv_heads);
    first_token = a.batch.first_token[sequence];
    rows = (a.batch.first_token[sequence + 1] - first_token) * heads;
    first_row = (tiles - 1 - number / columns) * kQueries;
    if (is_few(a.batch, sequence) || first_row >= rows) return false;
    begin = view_of_row(a, first_row).begin / kPagePositions;
    end = (view_of_row(a, first_row + kQueries - 1).end + kPagePositions - 1) / kPagePositions;
    return true;
  }
  /// Views advance with the rows.
  __device__ View view_of_row(const AttendArgs& a, int64_t row) const {
    return view_of(a.batch, a.shape, first_token + min(row, rows - 1) / heads);
  }
};

/// Blocks take tiles in rounds, every second round in reverse, so that all get as many pages.
template <class Each>
__device__ void each_tile(const AttendArgs& a, int64_t tiles, const Each& each) {
  const int64_t all = tiles * a.shape.num_kv_heads * a.batch.num_sequences;
  QueryTile tile;
  for (int64_t round = 0; round * gridDim.x < all; ++round) {
    const int64_t at = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const int64_t number = round * gridDim.x + at;
    if (number < all && tile.find(a, number, tiles)) each(tile);
  }
}

/// Copies a page of one head. Rows from `count` on become zeros: memory that was never written has
/// weight 0, but it may hold NaN.
template <DType kCache, int kColumns>
__device__ __forceinline__ void load_page(uint32_t to, const std::byte* from, int count,
                                          uint32_t there) {
  constexpr int kEights = kColumns / 8, kSize = cache_element(kCache);
  const int thread = static_cast<int>(threadIdx.x) - kComputers;
#pragma unroll
  for (int i = 0; i < kPagePositions * kEights / kLoaders; ++i) {
    const int at = i * kLoaders + thread, row = at / kEights, eight = at % kEights;
    const uint32_t place =
        to + eight / 8 * (kPagePositions * 128) + row * 128 + ((eight % 8 ^ row % 8) << 4);
    const std::byte* const source = from + at * (8 * kSize);
    if constexpr (kCache == DType::kBF16) {
      copy16_to(place, source, row < count);
    } else {
      const uint4 loaded = row < count ? load_eight<kCache>(source) : uint4{};
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place), "r"(loaded.x),
                   "r"(loaded.y), "r"(loaded.z), "r"(loaded.w)
                   : "memory");
    }
  }
  if constexpr (kCache == DType::kBF16) {
    arrive_after_copies(there);
  } else {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive(there);
  }
}

/// The same for an fp8 cache: copies are ahead of the pages that are widened.
template <int kHead, int kValue>
__device__ void widen_pages(const AttendArgs& a, int64_t tiles, PageTile<kHead, kValue> ring) {
  const int thread = static_cast<int>(threadIdx.x) - kComputers;
  CodeRing<kHead, kValue> codes{ring.base + ring.kCodes};
  each_tile(a, tiles, [&](const QueryTile& tile) {
    const Heads<kHead, kValue, DType::kF8E4M3> of(a, tile.sequence);
    const int32_t end = tile.view_of_row(a, tile.first_row + kQueries - 1).end;
    // A group of copies for each page, also for those after the last: groups are counted.
    const auto copy = [&](int32_t page) {
      if (page < tile.end) {
        const Lines lines = of.at(tile.kv, page * kPagePositions);
        const int count = end - page * kPagePositions;
        copy_codes<kHead, kLoaders>(codes.keys(), lines.keys, count, thread);
        copy_codes<kValue, kLoaders>(codes.values(), lines.values, count, thread);
      }
      close_copies();
    };
    for (int ahead = 0; ahead < codes.kPages; ++ahead, codes.advance()) copy(tile.begin + ahead);
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      await_copies<codes.kPages - 1>();
      wait_for(ring.was_read(ring.slot), ring.parity ^ 1);
      widen_codes<kHead, kLoaders>(ring.keys(), codes.keys(), thread);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      arrive(ring.keys_there());
      widen_codes<kValue, kLoaders>(ring.values(), codes.values(), thread);
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      arrive(ring.values_there());
      copy(page + codes.kPages);
      codes.advance();
      ring.advance();
    }
  });
}

template <int kHead, int kValue, DType kCache>
__device__ void load_pages(const AttendArgs& a, int64_t tiles, PageTile<kHead, kValue> ring) {
  each_tile(a, tiles, [&](const QueryTile& tile) {
    const Heads<kHead, kValue, kCache> of(a, tile.sequence);
    const int32_t end = tile.view_of_row(a, tile.first_row + kQueries - 1).end;
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      const Lines lines = of.at(tile.kv, page * kPagePositions);
      const int count = end - page * kPagePositions;
      wait_for(ring.was_read(ring.slot), ring.parity ^ 1);
      load_page<kCache, kHead>(ring.keys(), lines.keys, count, ring.keys_there());
      load_page<kCache, kValue>(ring.values(), lines.values, count, ring.values_there());
      ring.advance();
    }
  });
}

/// Descriptor of rows that are columns of the operand: 64 columns are 128 bytes, swizzled.
__device__ inline uint64_t column_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         uint64_t{(kPagePositions * 128) >> 4} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}

/// Sums of a warpgroup's 64 queries. Lane 4 g + k of a warp holds rows g and g + 8 of its 16, and
/// columns 2 k and 2 k + 1 of each 8.
template <int kHead, int kValue>
class QuerySums {
 public:
  using Ring = PageTile<kHead, kValue>;

  __device__ QuerySums(const AttendArgs& a, const QueryTile& tile)
      : a_(a), tile_(tile), own_(tile.first_row + threadIdx.x / 32 * 16) {
#pragma unroll
    for (int half = 0; half < 2; ++half) load_query(half);
  }

  /// Goes through the pages of the tile. Each page is released when the products that read it are
  /// complete, one page later.
  __device__ __forceinline__ void run(Ring& ring) {
    const float scale = a_.shape.scale * kLog2E;
    const int64_t group = tile_.first_row + threadIdx.x / 128 * kGroupQueries;
    const View least = tile_.view_of_row(a_, group),
               most = tile_.view_of_row(a_, group + kGroupQueries - 1);
    const bool whole_group = group + kGroupQueries <= tile_.rows;
    int unread = -1;
    for (int32_t page = tile_.begin; page < tile_.end; ++page) {
      const int32_t first = page * kPagePositions, next = first + kPagePositions;
      const bool any = group < tile_.rows && first < most.end && next > least.begin;
      const bool whole = whole_group && first >= most.begin && next <= least.end;
      float scores[kPagePositions / 2];
      wait_for(ring.keys_there(), ring.parity);
      if (any) multiply_keys(ring.keys(), scores);
      wgmma_wait<0>();
      pin(found_);
      if (unread >= 0) release(ring, unread);
      unread = ring.slot;
      if (any) {
        pin(scores);
        weigh(scores, first, whole, scale);
      }
      wait_for(ring.values_there(), ring.parity);
      if (any) multiply_values(ring.values());
      ring.advance();
    }
    wgmma_wait<0>();
    pin(found_);
    release(ring, unread);
  }

  __device__ void store() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(kAllLanes, sum_[half], 2);
      const int64_t row = own_ + lane_row() + 8 * half;
      if (row >= tile_.rows) continue;
      const int64_t head = tile_.kv * tile_.heads + row % tile_.heads;
      const WithSink all = with_sink(a_.shape, head, reference_[half], sum_[half]);
      const float factor = all.shrink / all.sum;
      auto* const to = static_cast<uint16_t*>(a_.out.data) +
                       (tile_.first_token + row / tile_.heads) * a_.out.stride + head * kValue;
#pragma unroll
      for (int n = 0; n < kValue / 8; ++n)
        *reinterpret_cast<uint32_t*>(to + 8 * n + 2 * lane_column()) =
            to_bf16_pair(found_[4 * n + 2 * half] * factor, found_[4 * n + 2 * half + 1] * factor);
    }
  }

 private:
  // Scores may exceed the reference by this much (base 2) before it moves. Weights stay below 2^8.
  static constexpr float kSlack = 8;
  __device__ static int lane_row() {
    return threadIdx.x % 32 / 4;
  }
  __device__ static int lane_column() {
    return threadIdx.x % 4;
  }

  // A row without a query sees nothing.
  __device__ void load_query(int half) {
    const int64_t row = own_ + lane_row() + 8 * half;
    const bool there = row < tile_.rows;
    view_[half] = there ? tile_.view_of_row(a_, row) : View{0, 0};
    const auto* const pairs = reinterpret_cast<const uint32_t*>(
        query_of(a_, tile_.first_token + (there ? row : 0) / tile_.heads,
                 tile_.kv * tile_.heads + (there ? row : 0) % tile_.heads));
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i) {
      query_[i][half] = there ? pairs[8 * i + lane_column()] : 0;
      query_[i][half + 2] = there ? pairs[8 * i + lane_column() + 4] : 0;
    }
  }

  __device__ __forceinline__ void multiply_keys(uint32_t keys,
                                                float (&scores)[kPagePositions / 2]) {
#pragma unroll
    for (float& score : scores) score = 0;
    pin(scores);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHead / 16; ++i)
      wgmma<Products::kBf16, kPagePositions>(
          scores, query_[i], row_descriptor(keys + i / 4 * Ring::kAtomBytes + i % 4 * 32), true);
    wgmma_commit();
  }
  __device__ __forceinline__ void multiply_values(uint32_t values) {
    pin(found_);
    wgmma_fence();
#pragma unroll
    for (int p = 0; p < kPagePositions / 16; ++p)
      wgmma<Products::kBf16, kValue, true>(found_, weights_[p],
                                           column_descriptor(values + p * 2048), true);
    wgmma_commit();
  }

  /// Online softmax with a reference that moves only when scores exceed it by far.
  __device__ __forceinline__ void weigh(float (&scores)[kPagePositions / 2], int32_t first,
                                        bool whole, float scale) {
    float most[2] = {nothing(), nothing()};
#pragma unroll
    for (int i = 0; i < kPagePositions / 2; ++i) {
      const int half = i % 4 / 2;
      scores[i] *= scale;
      if (!whole) {
        const int32_t position = first + i / 4 * 8 + 2 * lane_column() + i % 2;
        if (position < view_[half].begin || position >= view_[half].end) scores[i] = nothing();
      }
      most[half] = fmaxf(most[half], scores[i]);
    }
    const bool exceeds = most[0] > reference_[0] + kSlack || most[1] > reference_[1] + kSlack;
    if (__any_sync(kAllLanes, exceeds)) move_reference(most);
#pragma unroll
    for (int i = 0; i < kPagePositions / 2; ++i) {
      const int half = i % 4 / 2;
      // A row that has seen no position yet has no reference.
      const float base = reference_[half] == nothing() ? 0.0f : reference_[half];
      scores[i] = exp2f(scores[i] - base);
      sum_[half] += scores[i];
    }
#pragma unroll
    for (int p = 0; p < kPagePositions / 16; ++p) {
#pragma unroll
      for (int r = 0; r < 4; ++r)
        weights_[p][r] = to_bf16_pair(scores[8 * p + 2 * r], scores[8 * p + 2 * r + 1]);
    }
  }
  __device__ void move_reference(float (&most)[2]) {
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 1));
      most[half] = fmaxf(most[half], __shfl_xor_sync(kAllLanes, most[half], 2));
      most[half] = fmaxf(most[half], reference_[half]);
      shrink[half] = most[half] == nothing() ? 1.0f : exp2f(reference_[half] - most[half]);
      reference_[half] = most[half];
      sum_[half] *= shrink[half];
    }
#pragma unroll
    for (int i = 0; i < kValue / 2; ++i) found_[i] *= shrink[i % 4 / 2];
  }
  __device__ void release(const Ring& ring, int slot) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(ring.was_read(slot));
  }

  const AttendArgs& a_;
  const QueryTile& tile_;
  const int64_t own_;  // first row of this warp
  uint32_t query_[kHead / 16][4], weights_[kPagePositions / 16][4];
  float found_[kValue / 2] = {};  // not yet divided by `sum_`
  float reference_[2] = {nothing(), nothing()}, sum_[2] = {};
  View view_[2];
};

template <int kHead, int kValue, DType kCache>
__global__ void __launch_bounds__(kAllThreads, 1)
    attend_wgmma(const __grid_constant__ AttendArgs a, int64_t tiles) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) uint8_t memory[];
  PageTile<kHead, kValue> ring{shared_address(memory)};
  if (threadIdx.x < ring.kStages) {
    init_barrier(ring.barrier(0, threadIdx.x), kLoaders);
    init_barrier(ring.barrier(1, threadIdx.x), kLoaders);
    init_barrier(ring.barrier(2, threadIdx.x), kComputers / 32);
    fence_barrier_init();
  }
  __syncthreads();
  await_earlier_kernels();
  start_later_kernels();
  if (threadIdx.x >= kComputers) {
    give_registers<kLoaderRegisters>();
    if constexpr (kCache == DType::kF8E4M3) {
      widen_pages(a, tiles, ring);
    } else {
      load_pages<kHead, kValue, kCache>(a, tiles, ring);
    }
  } else {
    take_registers<kComputerRegisters>();
    each_tile(a, tiles, [&](const QueryTile& tile) {
      QuerySums<kHead, kValue> sums(a, tile);
      sums.run(ring);
      sums.store();
    });
  }
#endif
}

}  // namespace

Status attend_many_on_wgmma(const AttendArgs& args, const Queue& queue, Stream stream) {
  return visit_heads(args.shape, [&]<int kHead, int kValue, DType kCache>() -> Status {
    const auto kernel = attend_wgmma<kHead, kValue, kCache>;
    constexpr int kCodes = kCache == DType::kF8E4M3 ? CodeRing<kHead, kValue>::kBytes : 0;
    constexpr size_t kShared = PageTile<kHead, kValue>::kCodes + kCodes;
    static_assert(kShared <= 227 * 1024);
    {
      MORACLE_TRY(const CurrentDevice here, CurrentDevice::enter(queue.index));
      MORACLE_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
    }
    const int64_t group = args.shape.num_heads / args.shape.num_kv_heads;
    const int64_t tiles = (args.batch.most_tokens * group + kQueries - 1) / kQueries;
    const int64_t all = tiles * args.shape.num_kv_heads * args.batch.num_sequences;
    return launch_early(queue, stream, "attend_wgmma", kernel,
                        std::min<int64_t>(all, queue.multiprocessors), kAllThreads, kShared, args,
                        tiles);
  });
}

}  // namespace moracle::cuda
