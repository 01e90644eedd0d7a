#include "placement/slots.h"

#include <algorithm>

namespace moracle {

int64_t ExpertSlots::num_ready() const {
  return std::count(states_.begin(), states_.end(), State::kReady);
}

bool ExpertSlots::begin(int64_t expert, int64_t slot) {
  if (!valid(slot) || expert < 0 || expert >= num_experts()) return false;
  if (states_[slot] == State::kArriving || slot_of_[expert] >= 0) return false;
  clear(slot);
  slot_of_[expert] = static_cast<int32_t>(slot);
  expert_in_[slot] = static_cast<int32_t>(expert);
  states_[slot] = State::kArriving;
  return true;
}

bool ExpertSlots::finish(int64_t slot) {
  if (!valid(slot) || states_[slot] != State::kArriving) return false;
  states_[slot] = State::kReady;
  return true;
}

void ExpertSlots::clear(int64_t slot) {
  if (!valid(slot)) return;
  if (expert_in_[slot] >= 0) slot_of_[expert_in_[slot]] = -1;
  expert_in_[slot] = -1;
  states_[slot] = State::kEmpty;
}

}  // namespace moracle
