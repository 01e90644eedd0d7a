// What a sum or a gather over peers reads and writes, whatever carries it: lines or blocks.
#pragma once

#include "parallel/cuda/peer_lines.h"

namespace moracle::cuda {

inline int64_t bytes_of(const Matrix& x) {
  return x.rows * x.cols * bits(x.dtype) / 8;
}

/// The values of this rank for all others, and the place of their sum.
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
  /// `mine` becomes the sum of the part of `all` that is for this rank.
  static SummedBytes of_rows(const Matrix& all, const Matrix& mine) {
    return {static_cast<const std::byte*>(all.data), bytes_of(mine),
            static_cast<std::byte*>(mine.data), bytes_of(mine)};
  }
};

struct GatheredParts {
  PeerPart parts[kMostGathered];
  int64_t bytes;  ///< of all parts together

  static GatheredParts of(std::span<const PeerPart> parts) {
    GatheredParts all{};
    for (size_t i = 0; i < parts.size(); ++i) {
      all.parts[i] = parts[i];
      all.bytes += parts[i].bytes;
    }
    return all;
  }
  /// The part that holds byte `at`, which becomes the place in it.
  __device__ const PeerPart& find(int64_t& at) const {
    int i = 0;
    for (; i < kMostGathered - 1 && at >= parts[i].bytes; ++i) at -= parts[i].bytes;
    return parts[i];
  }
};

}  // namespace moracle::cuda
