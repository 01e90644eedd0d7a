// Which rows of this rank go to which rank, and which returned rows each token adds. Host memory.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "parallel/expert_copies.h"

namespace moracle {

/// Rows to send, grouped by destination rank. A token's row is sent once to each rank that holds
/// any of its experts.
struct SendPlan {
  std::vector<int32_t> row_tokens;  ///< the token of each sent row
  std::vector<int32_t> ids;         ///< [sent rows, top_k]; -1: an expert of another rank
  std::vector<float> weights;       ///< likewise
  /// [tokens, ranks]: the sent row whose result the token adds; -1: none of that rank.
  std::vector<int32_t> token_rows;
  /// [tokens * top_k]: the index of each slot's result, if slots return one by one in the order of
  /// `ids`; -1: no rank has the expert.
  std::vector<int32_t> slot_rows;
  std::vector<int64_t> send_counts;                    ///< rows to each rank
  std::vector<int64_t> slot_send_counts;               ///< ids of these rows that are not -1
  std::vector<int64_t> recv_counts, slot_recv_counts;  ///< from each rank; set by the dispatch

  int64_t num_sent() const { return static_cast<int64_t>(row_tokens.size()); }
  int64_t num_received() const { return sum(recv_counts); }
  int64_t num_slots() const { return sum(slot_send_counts); }
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
};

/// `copies`: the experts of each of `size` ranks. Errors: an id that is neither -1 nor an expert.
Result<SendPlan> plan_sends(std::span<const int32_t> ids, std::span<const float> weights,
                            int64_t top_k, const ExpertCopies& copies, int64_t size);

}  // namespace moracle
