// All-reduce, reduce-scatter and all-gather of large matrices over GPUs that write to each other's
// memory: chunks of values with one signal each.
#pragma once

#include "moracle/parallel.h"
#include "parallel/cuda/peer_low_latency.h"
#include "quant/rows.h"

namespace moracle::cuda {

/// As PeerLowLatency, without a flag in each packet. A thread block writes a chunk to the memory of
/// all other ranks, then the number of the round as a signal, and reads the chunks of the previous
/// round. Rounds use a ring of four slots: a rank that has read round n - 1 knows that the others
/// have written it, so they have read round n - 3, whose slot round n + 1 overwrites.
struct PeerChunks {
  static constexpr int kBlocks = 128, kSlots = 4;
  static constexpr int64_t kBytes = 16 << 10;  // of a chunk: a thread block in a round
  /// Bytes of peer memory for `ranks`: values, then signals.
  static constexpr size_t memory_bytes(int64_t ranks) {
    return size_t{kSlots} * ranks * kBlocks * (kBytes + sizeof(uint64_t));
  }

  std::array<std::byte*, kMostPeers> memory;  ///< by rank
  int rank = 0, ranks = 1;
  uint32_t* rounds = nullptr;  ///< [kBlocks], device memory: finished rounds of each
  const int* stop = nullptr;   ///< host memory; not 0: stop waiting for other ranks
};

// Sizes and addresses below are multiples of 16 bytes.

/// As the overloads for PeerLowLatency, with the same bits.
Status peer_sum(const Queue& queue, const PeerChunks& chunks, const Matrix& x, Stream stream);
/// The same sums, each computed by one rank: a reduce-scatter in place, then an all-gather. A rank
/// sends 2 (ranks - 1) / ranks times x instead of ranks - 1 times. x without gaps between rows, its
/// bytes a multiple of 16 * ranks.
Status peer_sum_in_ranges(const Queue& queue, const PeerChunks& chunks, const Matrix& x,
                          Stream stream);
Status peer_sum_rows(const Queue& queue, const PeerChunks& chunks, const Matrix& all,
                     const Matrix& mine, Stream stream);
Status peer_gather(const Queue& queue, const PeerChunks& chunks,
                   std::span<const PeerGathered> gathered, Stream stream);

/// Exchange::combine_scatter: Ops::combine and peer_sum_rows in one kernel. Both matrices are bf16
/// without gaps, with columns in multiples of 8. `order` has memory for all tokens.
Status peer_combine_scatter(const Queue& queue, const PeerChunks& chunks, const ExpertRows& rows,
                            const Exchange::RowOrder& order, const Matrix& mine, Stream stream);

}  // namespace moracle::cuda
