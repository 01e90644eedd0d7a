// How calls of a placed layer run by their number of tokens: pure logic.
#pragma once

#include <cstdint>
#include <vector>

#include "moracle/placement.h"

namespace moracle {

/// What calls of one layer take on this machine, in microseconds. Choices count as spread evenly
/// over the experts: texts that use fewer experts take less on every way.
struct CallTimes {
  /// Measured with all choices on the host.
  struct OnHost {
    int64_t num_tokens = 0;
    double us = 0;
  };
  int64_t num_experts = 0, top_k = 0;
  int64_t num_filled = 0;  ///< slots with an expert
  double slot_us = 0;      ///< of one expert that tokens choose, computed in a slot
  double transfer_us = 0;  ///< until an expert is in a slot; 0: it cannot be fetched
  double stream_us = 0;    ///< until all experts are on the device; 0: there is no memory for it
  std::vector<OnHost> on_host;  ///< ascending in tokens, from 1 on

  /// Experts that so many tokens choose.
  double touched(int64_t num_tokens) const;
  /// The host alone.
  double host_us(int64_t num_tokens) const;
  /// Infinity for a way that this layer does not have.
  double call_us(CallWay way, int64_t num_tokens) const;
  CallWay best(int64_t num_tokens) const;
  /// The best way of 1, 2, … `most` tokens.
  std::vector<CallWay> ways(int64_t most) const;
  /// The number of slots beyond which some call would wait for the slots longer than for the host.
  int64_t balanced_slots() const;
};

}  // namespace moracle
