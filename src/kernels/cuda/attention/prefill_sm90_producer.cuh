// Attention of prompts on Hopper: one warpgroup copies queries, keys and values to shared memory.
#pragma once

#include <bit>

#include "kernels/cuda/attention/page_copies.cuh"
#include "kernels/cuda/attention/prefill_sm90_tiles.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mbarrier.cuh"
#include "kernels/cuda/ptx/shared_memory.cuh"

namespace moracle::cuda {

__device__ inline void store_row(uint32_t to, const QueryRow& row) {
  store_shared_16(to, std::bit_cast<uint4>(row));
}

/// Copies the queries of a tile, and writes what its rows are. Rows without a query become zeros.
/// Loaders run ahead: looked up by the threads that multiply, positions and lengths took 1.7 us of
/// each tile.
template <int kHead, class Ring>
__device__ __forceinline__ void pass_tile(const AttendArgs& a, const QueryTile& tile, Ring& ring,
                                          int thread) {
  const auto row_of = [&](int row) {
    const int query = min(tile.first_row + row, tile.rows - 1);
    const View view = tile.view_of_row(a, query);
    return QueryRow{view.begin, view.end,
                    static_cast<int32_t>(tile.first_token + query / tile.heads),
                    tile.kv * tile.heads + query % tile.heads};
  };
  QueryRow row = row_of(thread);
  if (tile.first_row + thread >= tile.rows) row.token = -1;
  mbarrier_wait(ring.queries_read(), ring.query_parity ^ 1);
  store_row(ring.rows() + thread * sizeof(QueryRow), row);
  const int own = thread / 8, eight = thread % 8;
  for (int first = 0; first < kQueries; first += kLoaders / 8) {
    const int query = tile.first_row + first + own, last = min(query, tile.rows - 1);
    const uint16_t* const from = query_of(a, tile.first_token + last / tile.heads,
                                          int64_t{tile.kv} * tile.heads + last % tile.heads);
#pragma unroll
    for (int atom = 0; atom < kHead / 64; ++atom)
      cp_async_16(ring.queries() + atom * Ring::kQueryAtomBytes + (first + own) * 128 +
                      ((eight ^ own % 8) << 4),
                  from + atom * 64 + 8 * eight, query < tile.rows);
  }
  cp_async_commit();
  cp_async_wait<0>();
  mbarrier_arrive(ring.queries_there());
  ring.query_parity ^= 1;
}
/// Says that no tile follows.
template <class Ring>
__device__ __forceinline__ void pass_end(Ring& ring, int thread) {
  mbarrier_wait(ring.queries_read(), ring.query_parity ^ 1);
  store_row(ring.rows() + thread * sizeof(QueryRow), {-1, -1, -1, -1});
  mbarrier_arrive(ring.queries_there());
}

/// Pages of a tile, one after another: `each` gets the addresses and the number of positions.
template <int kHead, int kValue, DType kCache, class Each>
__device__ __forceinline__ void each_page(const AttendArgs& a, const QueryTile& tile,
                                          const Each& each) {
  const Heads<kHead, kValue, kCache> of(a, tile.sequence);
  const int32_t end = tile.last_seen(a);
  for (int32_t page = tile.begin; page < tile.end; ++page)
    each(of.at(tile.kv, page * kPagePositions), end - page * kPagePositions);
}

template <int kHead, int kValue, DType kCache>
__device__ void load_pages(const AttendArgs& a, int64_t tiles,
                           BlockRing<kHead, kValue, kCache> ring) {
  using Ring = BlockRing<kHead, kValue, kCache>;
  const int thread = static_cast<int>(threadIdx.x) - kComputers;
  each_tile(a, tiles, [&](const QueryTile& tile) {
    pass_tile<kHead>(a, tile, ring, thread);
    each_page<kHead, kValue, kCache>(a, tile, [&](const Lines& lines, int count) {
      mbarrier_wait(ring.keys_read(), ring.parity ^ 1);
      copy_page<kCache, kHead, Ring::kAtomBytes>(ring.keys(), lines.keys, count, thread);
      arrive_with_page<kCache>(ring.keys_there());
      mbarrier_wait(ring.values_read(), ring.parity ^ 1);
      copy_page<kCache, kValue, Ring::kAtomBytes>(ring.values(), lines.values, count, thread);
      arrive_with_page<kCache>(ring.values_there());
      ring.advance();
    });
  });
  pass_end(ring, thread);
}

/// The same for a cache of f16. A thread rounds its own copies in place, a page later.
template <int kHead, int kValue>
__device__ void round_pages(const AttendArgs& a, int64_t tiles,
                            BlockRing<kHead, kValue, DType::kF16> ring) {
  using Ring = BlockRing<kHead, kValue, DType::kF16>;
  const int thread = static_cast<int>(threadIdx.x) - kComputers;
  const auto round = [&](Ring& of) {
    round_page<kHead, Ring::kAtomBytes>(of.keys(), thread);
    arrive_with_page<DType::kF16>(of.keys_there());
    round_page<kValue, Ring::kAtomBytes>(of.values(), thread);
    arrive_with_page<DType::kF16>(of.values_there());
    of.advance();
  };
  each_tile(a, tiles, [&](const QueryTile& tile) {
    pass_tile<kHead>(a, tile, ring, thread);
    Ring rounded = ring;
    int32_t ahead = 0;
    each_page<kHead, kValue, DType::kF16>(a, tile, [&](const Lines& lines, int count) {
      mbarrier_wait(ring.keys_read(), ring.parity ^ 1);
      mbarrier_wait(ring.values_read(), ring.parity ^ 1);
      copy_page<DType::kBF16, kHead, Ring::kAtomBytes>(ring.keys(), lines.keys, count, thread);
      copy_page<DType::kBF16, kValue, Ring::kAtomBytes>(ring.values(), lines.values, count, thread);
      cp_async_commit();
      ring.advance();
      if (++ahead == 1) return;
      cp_async_wait<1>();
      round(rounded);
    });
    cp_async_wait<0>();
    round(rounded);
  });
  pass_end(ring, thread);
}

/// The same for an fp8 cache: copies of codes are ahead of the pages that are widened.
template <int kHead, int kValue>
__device__ void widen_pages(const AttendArgs& a, int64_t tiles,
                            BlockRing<kHead, kValue, DType::kF8E4M3> ring) {
  using Ring = BlockRing<kHead, kValue, DType::kF8E4M3>;
  const int thread = static_cast<int>(threadIdx.x) - kComputers;
  CodeRing<kHead, kValue> codes{ring.base + Ring::kCodes};
  each_tile(a, tiles, [&](const QueryTile& tile) {
    pass_tile<kHead>(a, tile, ring, thread);
    const Heads<kHead, kValue, DType::kF8E4M3> of(a, tile.sequence);
    const int32_t end = tile.last_seen(a);
    // A group of copies for each page, also for those after the last: groups are counted.
    const auto copy = [&](int32_t page) {
      if (page < tile.end) {
        const Lines lines = of.at(tile.kv, page * kPagePositions);
        const int count = end - page * kPagePositions;
        copy_codes<kHead, kLoaders>(codes.keys(), lines.keys, count, thread);
        copy_codes<kValue, kLoaders>(codes.values(), lines.values, count, thread);
      }
      cp_async_commit();
    };
    for (int ahead = 0; ahead < codes.kPages; ++ahead, codes.advance()) copy(tile.begin + ahead);
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      cp_async_wait<codes.kPages - 1>();
      mbarrier_wait(ring.keys_read(), ring.parity ^ 1);
      widen_codes<kHead, kLoaders, Ring::kAtomBytes>(ring.keys(), codes.keys(), thread);
      arrive_with_page<DType::kF8E4M3>(ring.keys_there());
      mbarrier_wait(ring.values_read(), ring.parity ^ 1);
      widen_codes<kValue, kLoaders, Ring::kAtomBytes>(ring.values(), codes.values(), thread);
      arrive_with_page<DType::kF8E4M3>(ring.values_there());
      copy(page + codes.kPages);
      codes.advance();
      ring.advance();
    }
  });
  pass_end(ring, thread);
}

}  // namespace moracle::cuda
