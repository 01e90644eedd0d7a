// Attention of prompts on Hopper: tiles of queries, and the ring of blocks of keys and values.
#pragma once

#include "kernels/cuda/attention/page_codes.cuh"
#include "kernels/cuda/attention/page_copies.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"

namespace moracle::cuda {

constexpr int kComputers = 256;  // threads that multiply
constexpr int kGroupQueries = 64, kQueries = 2 * kGroupQueries;

/// A row of a tile: a query, the positions that it sees, and where its output goes. Rows without a
/// query have token -1, and the view of the last query. `begin` is -1 after the last tile.
struct QueryRow {
  int32_t begin, end, token, head;
};

/// Shared memory of a block: stages of a page of keys and values, the queries of a tile, barriers,
/// and the rows of two tiles. Matrices are [64 columns][row][128 bytes], swizzled. Pages two by two
/// in a stage were slower: 150 instead of 139 us (2 x 2,048 tokens, 32 heads of 128, H100).
template <int kHead, int kValue, DType kCache>
struct BlockRing {
  static constexpr int kPositions = kPagePositions, kAtomBytes = kPositions * 128;
  static constexpr int kKeyBytes = kHead / 64 * kAtomBytes, kValueBytes = kValue / 64 * kAtomBytes;
  static constexpr int kStageBytes = kKeyBytes + kValueBytes;
  static constexpr int kQueryAtomBytes = kQueries * 128;
  static constexpr int kQueryBytes = kHead / 64 * kQueryAtomBytes;
  static constexpr int kCodeBytes =
      kCache == DType::kF8E4M3 ? CodeRing<kHead, kValue>::kBytes : 0;  // of an fp8 cache
  static constexpr int kBarrierBytes = 256, kRowsBytes = kQueries * sizeof(QueryRow);
  static constexpr int kBeside = kQueryBytes + kBarrierBytes + 2 * kRowsBytes + kCodeBytes;
  static constexpr int kStages = std::min(4, (227 * 1024 - kBeside) / kStageBytes);
  static_assert(kStages >= 2);
  static constexpr int kQueryPlace = kStages * kStageBytes, kBarriers = kQueryPlace + kQueryBytes;
  static constexpr int kRowsPlace = kBarriers + kBarrierBytes;
  static constexpr int kCodes = kRowsPlace + 2 * kRowsBytes, kBytes = kCodes + kCodeBytes;

  uint32_t base;  // of shared memory, aligned to 1,024 bytes
  int slot = 0;
  uint32_t parity = 0, query_parity = 0;

  __device__ uint32_t keys() const { return base + slot * kStageBytes; }
  __device__ uint32_t values() const { return keys() + kKeyBytes; }
  __device__ uint32_t queries() const { return base + kQueryPlace; }
  __device__ uint32_t rows() const { return base + kRowsPlace + query_parity * kRowsBytes; }
  __device__ uint32_t barrier(int number) const { return base + kBarriers + number * 8; }
  __device__ uint32_t keys_there() const { return barrier(slot); }
  __device__ uint32_t values_there() const { return barrier(kStages + slot); }
  __device__ uint32_t keys_read() const { return barrier(2 * kStages + slot); }
  __device__ uint32_t values_read() const { return barrier(3 * kStages + slot); }
  __device__ uint32_t queries_there() const { return barrier(4 * kStages); }
  __device__ uint32_t queries_read() const { return barrier(4 * kStages + 1); }
  __device__ void advance() {
    if (++slot == kStages) slot = 0, parity ^= 1;
  }
  /// One thread calls.
  __device__ void init() const {
    for (int i = 0; i < 2 * kStages; ++i) mbarrier_init(barrier(i), kLoaders);
    for (int i = 2 * kStages; i < 4 * kStages; ++i) mbarrier_init(barrier(i), kComputers / 32);
    mbarrier_init(queries_there(), kLoaders);
    mbarrier_init(queries_read(), kComputers);
    mbarrier_init_fence();
  }
};

/// 128 queries of one KV head of a sequence: all heads that share its keys, token by token.
struct QueryTile {
  int64_t first_token;
  int32_t first_row, rows, kv, heads, sequence;
  int32_t begin, end;  // pages that they see

  /// Tile `number`; those with the largest views come first. False: it has no queries.
  __device__ bool find(const AttendArgs& a, int64_t number, int64_t tiles) {
    const int64_t columns = a.shape.num_kv_heads * a.batch.num_sequences;
    heads = static_cast<int32_t>(heads_per_kv(a.shape));
    kv = static_cast<int32_t>(number % a.shape.num_kv_heads);
    sequence = static_cast<int32_t>(number % columns / a.shape.num_kv_heads);
    const int32_t first = a.batch.first_token[sequence];
    first_token = first;
    rows = (a.batch.first_token[sequence + 1] - first) * heads;
    first_row = static_cast<int32_t>(tiles - 1 - number / columns) * kQueries;
    if (is_few(a.batch, sequence) || first_row >= rows) return false;
    begin = view_of_row(a, first_row).begin / kPagePositions;
    end = (last_seen(a) + kPagePositions - 1) / kPagePositions;
    return true;
  }
  /// Views advance with the rows. A row without a query has the view of the last query.
  __device__ View view_of_row(const AttendArgs& a, int32_t row) const {
    return view_of(a.batch, a.shape, first_token + min(row, rows - 1) / heads);
  }
  __device__ int32_t last_seen(const AttendArgs& a) const {
    return view_of_row(a, first_row + kQueries - 1).end;
  }
};

/// Blocks take tiles in rounds, every second round in reverse, so that all get as many pages.
template <class Each>
__device__ __forceinline__ void each_tile(const AttendArgs& a, int64_t tiles, const Each& each) {
  const int64_t all = tiles * a.shape.num_kv_heads * a.batch.num_sequences;
  QueryTile tile;
  for (int64_t round = 0; round * gridDim.x < all; ++round) {
    const int64_t at = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const int64_t number = round * gridDim.x + at;
    if (number < all && tile.find(a, number, tiles)) each(tile);
  }
}

}  // namespace moracle::cuda
