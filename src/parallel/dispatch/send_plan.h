// Which tokens of this rank travel to which rank, in host memory.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "parallel/expert_copies.h"

namespace moracle {

/// What this rank sends, rank after rank. A token's row travels once to each rank that holds any of
/// its experts.
struct Routes {
  std::vector<int32_t> tokens;   ///< of each sent row
  std::vector<int32_t> ids;      ///< [sent rows, top_k]; -1: an expert of another rank
  std::vector<float> weights;    ///< likewise
  std::vector<int32_t> returns;  ///< [tokens, ranks]: the row that comes back from a rank; -1: none
  /// [tokens * top_k]: the place of each slot's result, if every slot's comes back by itself, in
  /// the order of `ids`; -1: no rank has the expert.
  std::vector<int32_t> slot_returns;
  std::vector<int64_t> sends;                    ///< rows to each rank
  std::vector<int64_t> slot_sends;               ///< slots in those rows that have an expert
  std::vector<int64_t> receives, slot_receives;  ///< from each rank, once it said so

  int64_t num_sent() const { return static_cast<int64_t>(tokens.size()); }
  int64_t num_received() const { return sum(receives); }
  int64_t num_slots() const { return sum(slot_sends); }
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
};

/// `copies`: the experts of each of `size` ranks. Errors: an id that is neither -1 nor an expert.
Result<Routes> find_routes(std::span<const int32_t> ids, std::span<const float> weights,
                           int64_t top_k, const ExpertCopies& copies, int64_t size);

}  // namespace moracle
