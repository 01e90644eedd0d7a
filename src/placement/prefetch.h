// Experts that the next layer will use, from the experts of this one: pure logic, for the
// simulator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/policy.h"

namespace moracle {

/// Learns which experts of one layer follow those of the layer before in the same step. A move for
/// the coming call pays if the uses that it gains there, times the time that a slot saves for each,
/// exceed the time of the move. A move reads the expert from host memory once, as computing it
/// there does. So nothing pays where the host computes as fast as it reads.
class NextLayerPolicy {
 public:
  NextLayerPolicy(int64_t num_experts, const ExpertCosts& costs)
      : costs_(costs),
        num_experts_(num_experts),
        used_(static_cast<size_t>(num_experts)),
        followed_(static_cast<size_t>(num_experts * num_experts)) {}

  /// Counts a step: the experts of the layer before, and those of this one.
  void observe(std::span<const int32_t> before, std::span<const int32_t> chosen);
  /// Probability of an expert in a call after `before`: the largest share of the uses of one of
  /// these that it followed.
  double expected(std::span<const int32_t> before, int64_t expert) const;
  /// At most `most` moves for the coming call. `scores`: this layer's policy, which says what the
  /// victim's later uses are worth.
  std::vector<ExpertMove> decide(std::span<const int32_t> before, const ExpertSlots& slots,
                                 const SlotPolicy& scores, int64_t most) const;

 private:
  ExpertCosts costs_;
  int64_t num_experts_;
  std::vector<int32_t> used_;      // [num_experts] of the layer before
  std::vector<int32_t> followed_;  // [num_experts of the layer before, num_experts]
};

}  // namespace moracle
