// All-reduce, reduce-scatter and all-gather of small matrices over GPUs that write to each other's
// memory: one kernel per GPU, one latency of the link.
#pragma once

#include <span>

#include "kernels/cuda/device/cuda_queue.h"
#include "moracle/base.h"
#include "parallel/cuda/peer_memory.h"

namespace moracle::cuda {

/// The low-latency protocol (LL in NCCL): every rank writes packets to all others and polls the
/// packets that it receives. A packet of 16 bytes is 8 bytes of values, each 4 followed by the
/// number of the round as a flag, so no other signal is needed. The memory is double-buffered: a
/// rank in round n + 1 has the values of all ranks' round n, so all ranks have finished round n -
/// 1, whose buffer it overwrites.
struct PeerLowLatency {
  static constexpr int kBlocks = 32, kThreads = 512, kPacketsOfThread = 2;
  static constexpr int kPackets = kThreads * kPacketsOfThread;  // of a thread block in a round
  /// Bytes of peer memory for `ranks`.
  static constexpr size_t memory_bytes(int64_t ranks) {
    return size_t{2} * ranks * kBlocks * kPackets * 16;
  }

  std::array<std::byte*, kMostPeers> memory;  ///< by rank
  int rank = 0, ranks = 1;
  uint32_t* rounds = nullptr;  ///< [kBlocks], device memory: finished rounds of each
  const int* stop = nullptr;   ///< host memory; not 0: stop waiting for other ranks
};

// Sizes and addresses below are multiples of 8 bytes.

/// All-reduce: x = Σ x over ranks, added in the order of the ranks, in f32, rounded once.
Status peer_sum(const Queue& queue, const PeerLowLatency& low_latency, const Matrix& x,
                Stream stream);
/// Reduce-scatter: mine = Σ over ranks of rows [rank * mine.rows, …) of their `all`, likewise.
Status peer_sum_rows(const Queue& queue, const PeerLowLatency& low_latency, const Matrix& all,
                     const Matrix& mine, Stream stream);

inline constexpr int kMostGathered = 4;
/// All-gather: all [ranks * bytes] = `mine` of each rank.
struct PeerGathered {
  const std::byte* mine;
  int64_t bytes;
  std::byte* all;
};
Status peer_gather(const Queue& queue, const PeerLowLatency& low_latency,
                   std::span<const PeerGathered> gathered, Stream stream);

}  // namespace moracle::cuda
