// Which experts of one layer to move into slots, and which to evict: pure logic.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
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

/// The score of an expert is its number of uses, each halved for every half_life steps since. What
/// a score is worth depends on the text: the policy counts how often experts with such a score were
/// used in the steps that followed, apart for experts that have just been used, which may come, and
/// for those with the lowest scores in slots, which may go. A move pays if the uses that it gains,
/// times the time that a slot saves for each, exceed the time of the move, and while the host is
/// the slower device. The decisions depend on nothing but the calls, so equal traces give equal
/// moves.
class SlotPolicy {
 public:
  SlotPolicy(int64_t num_experts, int64_t num_slots, const PolicyOptions& options);

  /// Counts one step of the layer: `ids` are the experts of all tokens; ids outside the experts
  /// are skipped.
  void observe(std::span<const int32_t> ids);
  /// At most `most` moves, those with the highest scores first. Only experts of the last step move:
  /// others were not worth it when they were used. `first_slots`: of each device with slots,
  /// ascending from 0. Several devices: of those where a move pays, it goes where the sum of scores
  /// is least then, so that they get equal work.
  std::vector<ExpertMove> decide(const ExpertSlots& slots, int64_t most,
                                 std::span<const int64_t> first_slots = {});
  /// Scores as after steps with these uses: a start from RoutingStatistics.
  void start_from(std::span<const int64_t> uses, int64_t num_tokens);

  double score(int64_t expert) const;

 private:
  // Uses in the horizon_ steps after an expert had a score.
  class Worth {
   public:
    double of(double score) const;
    void count(double score, double uses);

   private:
    struct Seen {
      double uses = 0, count = 0;
    };
    static constexpr int kPerOctave = 3, kLeast = -6 * kPerOctave, kBuckets = 32;
    static size_t bucket(double score);
    std::array<Seen, kBuckets> seen_{};
  };
  struct Sample {
    int64_t step;
    int64_t uses;  // of the expert until then
    double score;
    int32_t expert;
    bool leaves;
  };
  void sample(int32_t expert, bool leaves);
  // True while the host takes longer for its part of a step than the slots for theirs.
  bool host_is_slower(const ExpertSlots& slots, size_t num_devices);

  PolicyOptions options_;
  double decay_;
  int64_t horizon_;
  std::array<double, 256> powers_{};  // of decay_
  int64_t step_ = 0;
  struct Uses {
    double score = 0;  // at `step`
    int64_t step = 0;
    int64_t count = 0;
  };
  std::vector<Uses> uses_;     // [num_experts]
  std::vector<int32_t> last_;  // experts of the last step, ascending, each once
  std::deque<Sample> samples_;
  Worth arrives_, leaves_;
  double host_us_ = 0, slots_us_ = 0;  // of the last steps, those before count less
};

/// Moves that a layer begins after a step at most. With traces of bench/lab/placement.md a second
/// one finds 4 to 9 % more choices in slots, a third one 1 %.
inline constexpr int64_t kMostMoves = 2;

/// The bytes that all layers may have on their way at a time: at first the given number, then half
/// more than the bus moves in a step, at least one expert. Slots stay empty while more wait for the
/// bus; fewer leave it idle after steps that want less.
class MoveBudget {
 public:
  explicit MoveBudget(int64_t bytes) : bytes_(bytes) {}
  /// Moves of experts of so many bytes that may begin now.
  int64_t moves_of(int64_t expert_bytes) const;
  void begin(int64_t expert_bytes) { in_flight_ += expert_bytes, expert_bytes_ = expert_bytes; }
  void end(int64_t expert_bytes) { in_flight_ -= expert_bytes, ended_ += expert_bytes; }
  void end_step();
  int64_t bytes() const { return bytes_; }
  int64_t in_flight() const { return in_flight_; }

 private:
  int64_t bytes_;
  int64_t in_flight_ = 0;
  int64_t ended_ = 0;         // in this step
  int64_t expert_bytes_ = 0;  // of the last move
};

}  // namespace moracle
