// Prefill attention on Hopper: the producer warpgroup copies queries, keys and values to shared
// memory. wgmma needs bf16. Pages in f16 and e4m3 are copied unchanged; later each thread converts
// its own copies, without a barrier. Converting in registers exposes the latency of every load:
// 2,810 us a layer instead of 1,253 (8 prompts of 2,048 tokens, e4m3, H200; bf16 1,170). Pages in
// f32 are still converted in registers.
#pragma once

#include <bit>

#include "kernels/cuda/attention/prefill_sm90_ring.cuh"
#include "kernels/cuda/ptx/tma.cuh"

namespace moracle::cuda {

/// Calls each(row, atom) for the vectors of a page that a thread copies, relative to its first one.
/// All arguments are constants, so an address is one register and a constant. Computing the
/// addresses spilled 240 bytes. 64 columns of a row are kVectors vectors.
template <int kColumns, int kVectors, class Each>
__device__ __forceinline__ void each_vector(const Each& each) {
#pragma unroll
  for (int row = 0; row < kPagePositions; row += kProducers / kVectors) {
#pragma unroll
    for (int atom = 0; atom < kColumns / 64; ++atom) each(row, atom);
  }
}

/// A thread's first 16-byte vector of a page in bf16: [64 columns][row][128 bytes], swizzled.
struct ThreadVector {
  int row, vec;
  __device__ explicit ThreadVector(int thread) : row(thread / 8), vec(thread % 8) {}
  __device__ uint32_t address(uint32_t page) const {
    return page + row * 128 + ((vec ^ row % 8) << 4);
  }
};

/// Copies this thread's vectors of a page. Rows from `count` on become zeros.
template <DType kCache, class Vectors, int kColumns, int kAtomBytes>
__device__ __forceinline__ void copy_page(uint32_t to, const std::byte* from, int count,
                                          int thread) {
  constexpr int kSize = cache_element(kCache);
  const ThreadVector own(thread);
  const uint32_t base = own.address(to);
  const std::byte* const source = from + (own.row * kColumns + own.vec * 8) * kSize;
  each_vector<kColumns, 8>([&](int row, int atom) {
    Vectors::put(base + atom * kAtomBytes + row * 128,
                 source + (row * kColumns + atom * 64) * kSize, row + own.row < count);
  });
}

/// Rounds this thread's vectors of a page from f16 to bf16, in place.
template <int kColumns, int kAtomBytes>
__device__ __forceinline__ void round_page(uint32_t page, int thread) {
  const uint32_t base = ThreadVector(thread).address(page);
  each_vector<kColumns, 8>([&](int row, int atom) {
    const uint32_t at = base + atom * kAtomBytes + row * 128;
    const uint4 x = load_shared_16(at);
    store_shared_16(at, {f16_to_bf16_pair(x.x), f16_to_bf16_pair(x.y), f16_to_bf16_pair(x.z),
                         f16_to_bf16_pair(x.w)});
  });
}

constexpr int kCodeAtom = kPagePositions * 64;  // bytes of 64 columns of a page in e4m3

/// Copies this thread's codes of a page: 16 of every 32nd row of 64 columns.
template <int kColumns>
__device__ __forceinline__ void copy_codes(uint32_t to, const std::byte* from, int count,
                                           int thread) {
  const int own = thread / 4;
  const std::byte* const source = from + own * kColumns + thread % 4 * 16;
  each_vector<kColumns, 4>([&](int row, int atom) {
    cp_async_16(to + thread * 16 + atom * kCodeAtom + row * 64, source + row * kColumns + atom * 64,
                row + own < count);
  });
}

/// Widens this thread's codes to a page in bf16. Eight threads of two rows write to all banks.
template <int kColumns, int kAtomBytes>
__device__ __forceinline__ void widen_codes(uint32_t to, uint32_t codes, int thread) {
  const int own = thread / 4, vec = thread % 4 * 2;
  each_vector<kColumns, 4>([&](int row, int atom) {
    const uint4 loaded = load_shared_16(codes + thread * 16 + atom * kCodeAtom + row * 64);
    const uint32_t c[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = c[2 * half], high = c[2 * half + 1];
      const uint32_t base = to + own * 128 + ((vec + half ^ own % 8) << 4);
      store_shared_16(base + atom * kAtomBytes + row * 128,
                      {e4m3_to_bf16_pair(low), e4m3_to_bf16_pair(low >> 16),
                       e4m3_to_bf16_pair(high), e4m3_to_bf16_pair(high >> 16)});
    }
  });
}

/// Arrives when wgmma can read this thread's part of a page.
template <bool kCopied>
__device__ __forceinline__ void arrive_with_page(uint32_t full) {
  if constexpr (kCopied) {
    mbarrier_arrive_after_cp_async(full);
  } else {
    fence_async_proxy();
    mbarrier_arrive(full);
  }
}

template <int kHead, int kValue, DType kCache>
class Producer {
 public:
  using Ring = PageRing<kHead, kValue, kCache>;

  __device__ Producer(const AttendArgs& a, const Ring& ring)
      : a_(a), ring_(ring), thread_(static_cast<int>(threadIdx.x) - kConsumers) {}

  __device__ __forceinline__ void run(int64_t tiles) {
    each_tile(a_, tiles, [&](const Tile& tile) {
      copy_queries(tile);
      if constexpr (kCache == DType::kF8E4M3) {
        widen_pages(tile);
      } else if constexpr (kCache == DType::kF16) {
        round_pages(tile);
      } else {
        copy_pages(tile);
      }
    });
    // The end: no tile follows.
    mbarrier_wait(ring_.queries_empty(), ring_.query_parity ^ 1);
    store_row({-1, -1, -1, -1});
    mbarrier_arrive(ring_.queries_full());
  }

 private:
  using Tile = QueryTile<kQueries>;
  using Cached = CachedHead<kHead, kValue, kCache>;
  static constexpr int kAtomBytes = Ring::kAtomBytes;

  /// Describes this thread's row of a tile to the consumers.
  __device__ void store_row(const QueryRow& row) const {
    store_shared_16(ring_.rows() + thread_ * sizeof(QueryRow), std::bit_cast<uint4>(row));
  }

  /// Copies the queries of a tile, and describes its rows. Rows without a query become zeros. The
  /// producer looks up positions and lengths, because in the consumers that took 1.7 us per tile.
  __device__ __forceinline__ void copy_queries(const Tile& tile) {
    const auto row_of = [&](int row) {
      const int query = min(tile.first_row + row, tile.rows - 1);
      const View view = tile.view_of_row(a_, query);
      return QueryRow{view.begin, view.end, static_cast<int32_t>(tile.token_of(query)),
                      tile.head_of(query)};
    };
    QueryRow row = row_of(thread_);
    if (tile.first_row + thread_ >= tile.rows) row.token = -1;
    mbarrier_wait(ring_.queries_empty(), ring_.query_parity ^ 1);
    store_row(row);
    const ThreadVector own(thread_);
    for (int first = 0; first < kQueries; first += kProducers / 8) {
      const int query = tile.first_row + first + own.row, last = min(query, tile.rows - 1);
      const uint16_t* const from = query_of(a_, tile.token_of(last), tile.head_of(last));
#pragma unroll
      for (int atom = 0; atom < kHead / 64; ++atom)
        cp_async_16(own.address(ring_.queries()) + atom * Ring::kQueryAtomBytes + first * 128,
                    from + atom * 64 + 8 * own.vec, query < tile.rows);
    }
    cp_async_commit();
    cp_async_wait<0>();
    mbarrier_arrive(ring_.queries_full());
    ring_.query_parity ^= 1;
  }

  __device__ __forceinline__ void copy_pages(const Tile& tile) {
    constexpr bool kCopied = kCache == DType::kBF16;
    using Vectors = Bf16Vectors<kCache>;
    const Cached cached(a_, tile.sequence, tile.kv);
    const int32_t end = tile.last_seen(a_);
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      const KvRows from = cached.at(page * kPagePositions);
      const int count = end - page * kPagePositions;
      mbarrier_wait(ring_.keys_empty(), ring_.parity ^ 1);
      copy_page<kCache, Vectors, kHead, kAtomBytes>(ring_.keys(), from.keys, count, thread_);
      arrive_with_page<kCopied>(ring_.keys_full());
      mbarrier_wait(ring_.values_empty(), ring_.parity ^ 1);
      copy_page<kCache, Vectors, kValue, kAtomBytes>(ring_.values(), from.values, count, thread_);
      arrive_with_page<kCopied>(ring_.values_full());
      ring_.advance();
    }
  }

  /// Copies pages in f16 to their slots, and rounds each in place one page later.
  __device__ __forceinline__ void round_pages(const Tile& tile) {
    const Cached cached(a_, tile.sequence, tile.kv);
    const int32_t end = tile.last_seen(a_);
    Ring rounded = ring_;
    const auto round = [&] {
      round_page<kHead, kAtomBytes>(rounded.keys(), thread_);
      arrive_with_page<false>(rounded.keys_full());
      round_page<kValue, kAtomBytes>(rounded.values(), thread_);
      arrive_with_page<false>(rounded.values_full());
      rounded.advance();
    };
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      const KvRows from = cached.at(page * kPagePositions);
      const int count = end - page * kPagePositions;
      mbarrier_wait(ring_.keys_empty(), ring_.parity ^ 1);
      mbarrier_wait(ring_.values_empty(), ring_.parity ^ 1);
      copy_page<kCache, CopyVectors, kHead, kAtomBytes>(ring_.keys(), from.keys, count, thread_);
      copy_page<kCache, CopyVectors, kValue, kAtomBytes>(ring_.values(), from.values, count,
                                                         thread_);
      cp_async_commit();
      ring_.advance();
      if (page == tile.begin) continue;
      cp_async_wait<1>();
      round();
    }
    cp_async_wait<0>();
    round();
  }

  /// Copies pages in e4m3 to a ring of their own, and widens each kCodePages pages later.
  __device__ __forceinline__ void widen_pages(const Tile& tile) {
    const Cached cached(a_, tile.sequence, tile.kv);
    const int32_t end = tile.last_seen(a_);
    const auto advance = [&] {
      if (++code_slot_ == kCodePages) code_slot_ = 0;
    };
    const auto codes = [&] {
      return ring_.base + Ring::kCodesAt + code_slot_ * Ring::kCodePageBytes;
    };
    // Commit a group for each page, also past the last one: cp_async_wait counts groups.
    const auto copy = [&](int32_t page) {
      if (page < tile.end) {
        const KvRows from = cached.at(page * kPagePositions);
        const int count = end - page * kPagePositions;
        copy_codes<kHead>(codes(), from.keys, count, thread_);
        copy_codes<kValue>(codes() + Ring::kCodeKeyBytes, from.values, count, thread_);
      }
      cp_async_commit();
    };
    for (int ahead = 0; ahead < kCodePages; ++ahead, advance()) copy(tile.begin + ahead);
    for (int32_t page = tile.begin; page < tile.end; ++page) {
      cp_async_wait<kCodePages - 1>();
      mbarrier_wait(ring_.keys_empty(), ring_.parity ^ 1);
      widen_codes<kHead, kAtomBytes>(ring_.keys(), codes(), thread_);
      arrive_with_page<false>(ring_.keys_full());
      mbarrier_wait(ring_.values_empty(), ring_.parity ^ 1);
      widen_codes<kValue, kAtomBytes>(ring_.values(), codes() + Ring::kCodeKeyBytes, thread_);
      arrive_with_page<false>(ring_.values_full());
      copy(page + kCodePages);
      advance();
      ring_.advance();
    }
  }

  const AttendArgs& a_;
  Ring ring_;
  const int thread_;  // of the producers
  int code_slot_ = 0;
};

}  // namespace moracle::cuda
