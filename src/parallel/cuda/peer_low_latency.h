// Sums and gathers of small matrices over GPUs that write to each other's memory: one kernel per
// GPU, one way over the link.
#pragma once

#include <span>

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/base.h"
#include "parallel/cuda/peer_memory.h"

namespace moracle::cuda {

/// Every rank writes values to all others, then reads what arrived. Values travel in lines of 16
/// bytes: 8 of values, each 4 with the number of the round, so that a line needs no other signal
/// that it has arrived. Rounds use two halves of the memory in turn: a rank that is in round n + 1
/// has the values of all ranks' round n, so all have finished round n - 1, whose half it
/// overwrites.
struct PeerLines {
  static constexpr int kBlocks = 32, kThreads = 512, kLinesOfThread = 2;
  static constexpr int kLines = kThreads * kLinesOfThread;  // of a block in a round
  /// Bytes of peer memory for `ranks`.
  static constexpr size_t memory_bytes(int64_t ranks) {
    return size_t{2} * ranks * kBlocks * kLines * 16;
  }

  std::array<std::byte*, kMostPeers> memory;  ///< by rank
  int rank = 0, ranks = 1;
  uint32_t* rounds = nullptr;  ///< [kBlocks], device memory: how many a block has finished
  const int* stop = nullptr;   ///< host memory: not 0 ends the wait for another rank
};

// All bytes below are multiples of 8, at addresses that are, too.

/// x = the sum over ranks of x: added in the order of the ranks, in f32, rounded once.
Status peer_sum(const Queue& queue, const PeerLines& lines, const Matrix& x, Stream stream);
/// mine = the sum over ranks of rows [rank * mine.rows, …) of their `all`, in the same way.
Status peer_sum_rows(const Queue& queue, const PeerLines& lines, const Matrix& all,
                     const Matrix& mine, Stream stream);

inline constexpr int kMostGathered = 4;
/// all [ranks * bytes] = `mine` of each rank.
struct PeerPart {
  const std::byte* mine;
  int64_t bytes;
  std::byte* all;
};
Status peer_gather(const Queue& queue, const PeerLines& lines, std::span<const PeerPart> parts,
                   Stream stream);

}  // namespace moracle::cuda
