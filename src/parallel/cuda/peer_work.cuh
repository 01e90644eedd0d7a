// The operands of sums and gathers over peers, for both protocols.
#pragma once

#include "moracle/parallel.h"
#include "parallel/cuda/peer_low_latency.h"
#include "parallel/cuda/peer_sums.cuh"
#include "quant/rows.h"

namespace moracle::cuda {

inline int64_t bytes_of(const Matrix& x) {
  return x.rows * x.cols * bits(x.dtype) / 8;
}

/// The values of this rank for each rank, and where their sum goes.
struct SummedBytes {
  const std::byte* from;
  int64_t of_rank;  ///< bytes from the values for a rank to those for the next one
  std::byte* to;
  int64_t bytes;

  /// x becomes the sum of all ranks' x.
  static SummedBytes in_place(const Matrix& x) {
    auto* const data = static_cast<std::byte*>(x.data);
    return {data, 0, data, bytes_of(x)};
  }
  /// Of these values in place, equal ranges for the ranks: `rank` sums its own.
  SummedBytes range(int rank, int ranks) const {
    return {from, bytes / ranks, to + rank * (bytes / ranks), bytes / ranks};
  }
  /// `mine` becomes the sum over ranks of this rank's rows of `all`.
  static SummedBytes of_rows(const Matrix& all, const Matrix& mine) {
    return {static_cast<const std::byte*>(all.data), bytes_of(mine),
            static_cast<std::byte*>(mine.data), bytes_of(mine)};
  }
};

/// The same for sums of expert rows, computed while they are sent: bf16 rows, added as by
/// Ops::combine in f32 in the order of `order`, rounded once.
struct RowsOfTokens {
  const uint16_t* values;
  int64_t stride;
  Exchange::RowOrder order;  ///< a token's rows, then -1
  int top_k;
  unsigned token_vectors;  ///< vectors of 16 bytes of a token
  int64_t rank_vectors;    ///< of the tokens of a rank
  std::byte* to;
  int64_t bytes;

  static RowsOfTokens of(const ExpertRows& rows, const Exchange::RowOrder& order,
                         const Matrix& mine) {
    return {static_cast<const uint16_t*>(rows.values.data),
            rows.values.stride,
            order,
            static_cast<int>(rows.top_k),
            static_cast<unsigned>(mine.cols / 8),
            bytes_of(mine) / 16,
            static_cast<std::byte*>(mine.data),
            bytes_of(mine)};
  }
  /// Eight neighbouring sums for a token of `rank`, at byte `at` of the tokens of that rank.
  __device__ uint4 value_for(int rank, int64_t at) const {
    constexpr int kAtOnce = 4;
    const auto vector = static_cast<unsigned>(rank * rank_vectors + at / 16);
    const unsigned token = vector / token_vectors;
    const uint16_t* const column = values + (vector - token * token_vectors) * 8;
    const int32_t* const rows = order.rows + token * static_cast<unsigned>(top_k);
    const float* const weights = order.weights + token * static_cast<unsigned>(top_k);
    float sum[8] = {};
    for (int begin = 0; begin < top_k; begin += kAtOnce) {
      int row[kAtOnce];
      uint4 words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) row[i] = begin + i < top_k ? rows[begin + i] : -1;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (row[i] >= 0) words[i] = *reinterpret_cast<const uint4*>(column + row[i] * stride);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (row[i] < 0) continue;
        const float weight = weights[begin + i];
        const uint32_t pairs[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 pair = PairOfBf16::widen(pairs[j]);
          sum[2 * j] += weight * pair.x, sum[2 * j + 1] += weight * pair.y;
        }
      }
      if (row[kAtOnce - 1] < 0) break;
    }
    return {PairOfBf16::narrow({sum[0], sum[1]}), PairOfBf16::narrow({sum[2], sum[3]}),
            PairOfBf16::narrow({sum[4], sum[5]}), PairOfBf16::narrow({sum[6], sum[7]})};
  }
};

struct PeerGatherList {
  PeerGathered gathered[kMostGathered];
  int64_t bytes;  ///< of all buffers together

  static PeerGatherList of(std::span<const PeerGathered> gathered) {
    PeerGatherList all{};
    for (size_t i = 0; i < gathered.size(); ++i) {
      all.gathered[i] = gathered[i];
      all.bytes += gathered[i].bytes;
    }
    return all;
  }
  /// The buffer that holds byte `at`; `at` becomes the offset in it.
  __device__ const PeerGathered& find(int64_t& at) const {
    int i = 0;
    for (; i < kMostGathered - 1 && at >= gathered[i].bytes; ++i) at -= gathered[i].bytes;
    return gathered[i];
  }
};

}  // namespace moracle::cuda
