// Which experts of one layer to move into slots, and which to evict: pure logic.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "moracle/placement.h"
#include "placement/slots.h"

namespace moracle {

/// A move of an expert into a slot. The slot's expert, if any, is evicted.
struct ExpertMove {
  int32_t expert = -1;
  int32_t slot = -1;
  bool operator==(const ExpertMove&) const = default;
};

/// The score of an expert is its number of uses, each halved for every half_life steps since. The
/// score estimates the uses of the next half_life / ln 2 steps. A move pays if the uses that it
/// gains, times the time that a slot saves for each, exceed the time of the move. The decisions
/// depend on nothing but the calls, so equal traces give equal moves.
class SlotPolicy {
 public:
  SlotPolicy(int64_t num_experts, const PolicyOptions& options);

  /// Counts one step of the layer: `ids` are the experts of all tokens; ids outside the experts
  /// are skipped.
  void observe(std::span<const int32_t> ids);
  /// At most `most` moves, those that gain most first. Only experts of the last step move: others
  /// were not worth it when they were used.
  /// `first_slots`: of each device with slots, ascending from 0. Several devices: of those where a
  /// move pays, it goes where the sum of scores is least then, so that they get equal work.
  std::vector<ExpertMove> decide(const ExpertSlots& slots, int64_t most,
                                 std::span<const int64_t> first_slots = {}) const;
  /// Scores as after steps with these uses: a start from RoutingStatistics.
  void start_from(std::span<const int64_t> uses, int64_t num_tokens);

  double score(int64_t expert) const;

 private:
  PolicyOptions options_;
  double decay_;
  std::array<double, 256> powers_{};  // of decay_
  int64_t step_ = 0;
  struct Uses {
    double score = 0;  // at `step`
    int64_t step = 0;
  };
  std::vector<Uses> uses_;     // [num_experts]
  std::vector<int32_t> last_;  // experts of the last step, ascending, each once
};

/// The bytes that all layers may have on their way at a time.
class MoveBudget {
 public:
  explicit MoveBudget(int64_t bytes) : bytes_(bytes) {}
  /// Moves of experts of so many bytes that may begin now.
  int64_t moves_of(int64_t expert_bytes) const;
  void begin(int64_t expert_bytes) { in_flight_ += expert_bytes; }
  void end(int64_t expert_bytes) { in_flight_ -= expert_bytes; }
  int64_t bytes() const { return bytes_; }
  int64_t in_flight() const { return in_flight_; }

 private:
  int64_t bytes_;
  int64_t in_flight_ = 0;
};

}  // namespace moracle
