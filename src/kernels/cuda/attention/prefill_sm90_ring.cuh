// Prefill attention on Hopper: the ring of pages in shared memory, and the tiles of a CTA.
#pragma once

#include "kernels/cuda/attention/prefill_tiles.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace moracle::cuda {

constexpr int kConsumers = 256;  // threads of the two consumer warpgroups
constexpr int kProducers = 128;  // threads of the producer warpgroup
constexpr int kGroupQueries = 64, kQueries = 2 * kGroupQueries;

/// Copies of pages in e4m3 that the producer has in flight, before it widens them.
constexpr int kCodePages = 3;

/// A row of a tile: a query, the positions that it sees, and where its output goes. Rows without a
/// query have token -1, and the view of the last query. `begin` is -1 after the last tile.
struct QueryRow {
  int32_t begin, end, token, head;
};

/// Shared memory of a CTA: ring slots with a page of keys and of values each, the queries of a
/// tile, barriers, the rows of two tiles, and pages in e4m3 in flight. Matrices are [64
/// columns][row][128 bytes], swizzled for wgmma. Two pages in a slot were slower: 150 instead of
/// 139 us (2 x 2,048 tokens, 32 heads of 128, H100).
template <int kHead, int kValue, DType kCache>
struct PageRing {
  static constexpr int kPositions = kPagePositions, kAtomBytes = kPositions * 128;
  static constexpr int kKeyBytes = kHead / 64 * kAtomBytes, kValueBytes = kValue / 64 * kAtomBytes;
  static constexpr int kSlotBytes = kKeyBytes + kValueBytes;
  static constexpr int kQueryAtomBytes = kQueries * 128;
  static constexpr int kQueryBytes = kHead / 64 * kQueryAtomBytes;
  static constexpr int kCodeKeyBytes = kPositions * kHead,
                       kCodePageBytes = kCodeKeyBytes + kPositions * kValue;
  static constexpr int kCodeBytes = kCache == DType::kF8E4M3 ? kCodePages * kCodePageBytes : 0;
  static constexpr int kBarrierBytes = 256, kRowsBytes = kQueries * sizeof(QueryRow);
  static constexpr int kBeside = kQueryBytes + kBarrierBytes + 2 * kRowsBytes + kCodeBytes;
  static constexpr int kStages = std::min(4, (227 * 1024 - kBeside) / kSlotBytes);
  static_assert(kStages >= 2);
  // Offsets behind the slots.
  static constexpr int kQueriesAt = kStages * kSlotBytes, kBarriersAt = kQueriesAt + kQueryBytes;
  static constexpr int kRowsAt = kBarriersAt + kBarrierBytes, kCodesAt = kRowsAt + 2 * kRowsBytes;
  static constexpr int kBytes = kCodesAt + kCodeBytes;

  uint32_t base;  // of shared memory, aligned to 1,024 bytes
  int slot = 0;
  uint32_t parity = 0, query_parity = 0;

  __device__ uint32_t keys() const { return base + slot * kSlotBytes; }
  __device__ uint32_t values() const { return keys() + kKeyBytes; }
  __device__ uint32_t queries() const { return base + kQueriesAt; }
  __device__ uint32_t rows() const { return base + kRowsAt + query_parity * kRowsBytes; }
  __device__ uint32_t barrier(int number) const { return base + kBarriersAt + number * 8; }
  __device__ uint32_t keys_full() const { return barrier(slot); }
  __device__ uint32_t values_full() const { return barrier(kStages + slot); }
  __device__ uint32_t keys_empty() const { return barrier(2 * kStages + slot); }
  __device__ uint32_t values_empty() const { return barrier(3 * kStages + slot); }
  __device__ uint32_t queries_full() const { return barrier(4 * kStages); }
  __device__ uint32_t queries_empty() const { return barrier(4 * kStages + 1); }
  __device__ void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }
  /// One thread calls.
  __device__ void init() const {
    for (int i = 0; i < 2 * kStages; ++i) mbarrier_init(barrier(i), kProducers);
    for (int i = 2 * kStages; i < 4 * kStages; ++i) mbarrier_init(barrier(i), kConsumers / 32);
    mbarrier_init(queries_full(), kProducers);
    mbarrier_init(queries_empty(), kConsumers);
    mbarrier_init_fence();
  }
};

/// Persistent CTAs take tiles in rounds. Every second round runs in reverse, so that all CTAs get
/// about the same number of pages.
template <class Each>
__device__ __forceinline__ void each_tile(const AttendArgs& a, int64_t tiles, const Each& each) {
  const int64_t all = tiles * a.shape.num_kv_heads * a.batch.num_sequences;
  QueryTile<kQueries> tile;
  for (int64_t round = 0; round * gridDim.x < all; ++round) {
    const int64_t at = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const int64_t number = round * gridDim.x + at;
    if (number < all && tile.find(a, number, tiles)) each(tile);
  }
}

}  // namespace moracle::cuda
