// The same as attend_stream.cuh for e4m3 keys and values: shared memory holds the cache's bytes,
// and a lane widens what it multiplies. So twice as many positions are on their way.
#pragma once

#include "kernels/cuda/attention/decode_sm90_tiles.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace moracle::cuda {

/// Places of the 16-byte pieces of a row: those that a quarter of a warp reads at once lie in
/// different banks.
template <int kHead>
__device__ __forceinline__ int key_piece(int row, int piece) {
  constexpr int kPieces = kHead / 16;
  return row * kPieces + (kPieces == 8 ? piece ^ (row & 1) << 2 : piece);
}
template <int kValue>
__device__ __forceinline__ int value_piece(int row, int piece) {
  constexpr int kPieces = kValue / 16;
  return row * kPieces + (piece ^ (kPieces == 8 ? row & 6 : row >> 1 & 3));
}

/// Copies 16 rows that are adjacent in the cache. Rows from `count` on become zeros.
template <int kColumns, class Place>
__device__ __forceinline__ void copy_byte_rows(uint8_t* to, const std::byte* from, int count,
                                               const Place& place) {
  constexpr int kPieces = kColumns / 16;
#pragma unroll
  for (int i = 0; i < kStreamRows * kPieces / 32; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x) % 32, row = at / kPieces;
    cp_async_16(to + place(row, at % kPieces) * 16, from + at * 16, row < count);
  }
}

/// Lane 4 g + k takes 16 neighbouring columns of keys g and g + 8 for every four products, and
/// kValue / 8 neighbouring columns of values 2 k, 2 k + 1, 2 k + 8 and 2 k + 9. Queries and sums
/// have the same order of columns.
template <int kHead, int kValue, int kTiles>
struct ByteSums : StreamSums<kHead, kValue, kTiles> {
  using Base = StreamSums<kHead, kValue, kTiles>;
  static_assert(kHead % 64 == 0 && kValue % 64 == 0);
  static constexpr int kLaneBytes = kValue / 8;
  using Base::found;
  using Base::query;
  using Base::row;
  using Base::turn;

  __device__ void load_queries(const AttendArgs& a, int64_t token, int64_t first, int64_t heads,
                               int64_t kv) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      this->reference[t][0] = this->reference[t][1] = nothing();
      const int64_t head = min(first + 8 * t + row(), heads - 1);
      const auto* const pairs =
          reinterpret_cast<const uint32_t*>(query_of(a, token, kv * heads + head));
#pragma unroll
      for (int i = 0; i < kHead / 16; ++i) {
        query[t][i][0] = pairs[i / 4 * 32 + 8 * turn() + 2 * (i % 4)];
        query[t][i][1] = pairs[i / 4 * 32 + 8 * turn() + 2 * (i % 4) + 1];
      }
    }
  }

  /// Adds the 16 positions from `first` on that are in the view.
  __device__ __forceinline__ void take(const uint8_t* keys, const uint8_t* values, int32_t first,
                                       const View& view, float scale) {
    float scores[kTiles][2][4] = {};  // two chains of products
#pragma unroll
    for (int group = 0; group < kHead / 64; ++group) {
      const auto key = [&](int of_row) {
        return *reinterpret_cast<const uint4*>(keys +
                                               key_piece<kHead>(of_row, 4 * group + turn()) * 16);
      };
      const uint4 upper = key(row()), lower = key(row() + 8);
      const uint32_t uppers[4] = {upper.x, upper.y, upper.z, upper.w};
      const uint32_t lowers[4] = {lower.x, lower.y, lower.z, lower.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t rows[4] = {e4m3_to_bf16_pair(uppers[i]), e4m3_to_bf16_pair(lowers[i]),
                                  e4m3_to_bf16_pair(uppers[i] >> 16),
                                  e4m3_to_bf16_pair(lowers[i] >> 16)};
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_bf16(scores[t][i % 2], rows, query[t][4 * group + i][0], query[t][4 * group + i][1]);
      }
    }
    uint32_t weights[kTiles][2];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) this->weigh(t, scores[t], weights[t], first, view, scale);
    uint32_t words[4][kLaneBytes / 4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int of_row = 2 * turn() + r % 2 + r / 2 * 8, at = row() * kLaneBytes;
      const uint8_t* const from = values + value_piece<kValue>(of_row, at / 16) * 16 + at % 16;
      if constexpr (kLaneBytes == 16) {
        const uint4 four = *reinterpret_cast<const uint4*>(from);
        words[r][0] = four.x, words[r][1] = four.y, words[r][2] = four.z, words[r][3] = four.w;
      } else {
        const uint2 two = *reinterpret_cast<const uint2*>(from);
        words[r][0] = two.x, words[r][1] = two.y;
      }
    }
#pragma unroll
    for (int n = 0; n < kValue / 16; ++n) {
      // Two columns of two neighbouring positions, position by position.
      const auto pairs = [&](int r) {
        return __byte_perm(words[r][n / 2], words[r + 1][n / 2], n % 2 == 0 ? 0x5140 : 0x7362);
      };
      const uint32_t upper = pairs(0), lower = pairs(2);
      const uint32_t columns[4] = {e4m3_to_bf16_pair(upper), e4m3_to_bf16_pair(upper >> 16),
                                   e4m3_to_bf16_pair(lower), e4m3_to_bf16_pair(lower >> 16)};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) mma_bf16(found[t][n], columns, weights[t][0], weights[t][1]);
    }
  }

  /// Calls each(head, column, value) for the values of this lane.
  template <class Each>
  __device__ void each_found(const Each& each) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kValue / 16; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
          each(8 * t + 2 * turn() + c % 2, row() * kLaneBytes + 2 * n + c / 2, found[t][n][c]);
      }
    }
  }
};

/// The sums and the copies of a cache's type. All but e4m3 become bf16 on their way.
template <int kHead, int kValue, DType kCache, int kTiles>
struct Streamed {
  static constexpr int kSize = 2;
  using Sums = StreamSums<kHead, kValue, kTiles>;
  __device__ static void copy(uint8_t* keys, uint8_t* values, const Lines& from, int count) {
    copy_rows<kCache, kHead>(keys, from.keys, count);
    copy_rows<kCache, kValue>(values, from.values, count);
  }
};
template <int kHead, int kValue, int kTiles>
struct Streamed<kHead, kValue, DType::kF8E4M3, kTiles> {
  static constexpr int kSize = 1;
  using Sums = ByteSums<kHead, kValue, kTiles>;
  __device__ static void copy(uint8_t* keys, uint8_t* values, const Lines& from, int count) {
    copy_byte_rows<kHead>(keys, from.keys, count,
                          [](int row, int piece) { return key_piece<kHead>(row, piece); });
    copy_byte_rows<kValue>(values, from.values, count,
                           [](int row, int piece) { return value_piece<kValue>(row, piece); });
  }
};

}  // namespace moracle::cuda
