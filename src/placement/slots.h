// Which experts of one layer lie in the expert slots of a device that does not hold all of them.
#pragma once

#include <cstdint>
#include <vector>

namespace moracle {

/// Memory for `num_slots` of a layer's experts. An expert lies in one slot at most. A call reads
/// ready slots only. Pure bookkeeping: the owner calls begin, moves the bytes, then calls finish.
class ExpertSlots {
 public:
  enum class State : uint8_t {
    kEmpty,
    kArriving,  ///< its bytes are being written; no call reads it
    kReady,
  };

  ExpertSlots(int64_t num_experts, int64_t num_slots)
      : slot_of_(num_experts, -1), expert_in_(num_slots, -1), states_(num_slots, State::kEmpty) {}

  int64_t num_experts() const { return static_cast<int64_t>(slot_of_.size()); }
  int64_t num_slots() const { return static_cast<int64_t>(expert_in_.size()); }
  State state(int64_t slot) const { return states_[slot]; }
  /// The expert of a slot that is not empty, else -1.
  int32_t expert_in(int64_t slot) const { return expert_in_[slot]; }
  /// The slot of an expert, ready or arriving; -1: none.
  int32_t slot_of(int64_t expert) const { return slot_of_[expert]; }
  /// The slot in which a call finds the expert; -1: none.
  int32_t ready_slot(int64_t expert) const {
    const int32_t slot = slot_of_[expert];
    return slot >= 0 && states_[slot] == State::kReady ? slot : -1;
  }
  int64_t num_ready() const;

  /// Evicts the expert of the slot, if any, and lets another one arrive there. False, without any
  /// change: the slot's expert is still arriving, or the new one has a slot.
  bool begin(int64_t expert, int64_t slot);
  /// The bytes of the arriving expert are complete. False: no expert was arriving.
  bool finish(int64_t slot);
  /// Empties a slot: an expert is evicted, or one that was arriving does not.
  void clear(int64_t slot);

  bool operator==(const ExpertSlots&) const = default;

 private:
  bool valid(int64_t slot) const { return slot >= 0 && slot < num_slots(); }

  std::vector<int32_t> slot_of_;    // [num_experts]
  std::vector<int32_t> expert_in_;  // [num_slots]
  std::vector<State> states_;       // [num_slots]
};

}  // namespace moracle
