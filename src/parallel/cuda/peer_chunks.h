// Sums and gathers of large matrices over GPUs that write to each other's memory: blocks of values
// with one signal for each.
#pragma once

#include "parallel/cuda/peer_lines.h"
#include "parallel/row_sums.h"

namespace moracle::cuda {

/// As PeerLines, for bytes whose flags would take too much of the link. A thread block writes its
/// values to the memory of all other ranks, then the number of the round as a signal, and reads the
/// values of the round before. Rounds use four places in turn: a rank that has read round n - 1
/// knows that the others have written it, so they have read round n - 3, whose place round n + 1
/// takes.
struct PeerBlocks {
  static constexpr int kBlocks = 128, kPlaces = 4;
  static constexpr int64_t kBytes = 16 << 10;  // of a block in a round
  /// Bytes of peer memory for `ranks`: values, then signals.
  static constexpr size_t memory_bytes(int64_t ranks) {
    return size_t{kPlaces} * ranks * kBlocks * (kBytes + sizeof(uint64_t));
  }

  std::array<std::byte*, kMostPeers> memory;  ///< by rank
  int rank = 0, ranks = 1;
  uint32_t* rounds = nullptr;  ///< [kBlocks], device memory: how many a block has finished
  const int* stop = nullptr;   ///< host memory: not 0 ends the wait for another rank
};

// All bytes below are multiples of 16, at addresses that are, too.

/// As the functions for PeerLines, with the same bits.
Status peer_sum(const Queue& queue, const PeerBlocks& blocks, const Matrix& x, Stream stream);
Status peer_sum_rows(const Queue& queue, const PeerBlocks& blocks, const Matrix& all,
                     const Matrix& mine, Stream stream);
Status peer_gather(const Queue& queue, const PeerBlocks& blocks, std::span<const PeerPart> parts,
                   Stream stream);

/// Ops::combine and peer_sum_rows in one, with the bits of the two: each rank adds its rows of
/// every token, and `mine` becomes the sum over ranks for the tokens of this one. Both matrices are
/// bf16 without gaps, with columns in multiples of 8. `order` has room for all tokens.
Status peer_add_rows(const Queue& queue, const PeerBlocks& blocks, const ExpertRows& rows,
                     const RowOrder& order, const Matrix& mine, Stream stream);

}  // namespace moracle::cuda
