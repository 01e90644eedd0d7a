// What placed layers share.
#pragma once

#include <deque>

#include "moracle/placement.h"
#include "placement/policy.h"

namespace moracle {

/// An expert on its way into a slot that is empty meanwhile.
struct PendingMove {
  void* layer;  ///< the PlacedMoe::State
  ExpertMove move;
  int64_t next_slice = 0;
};

struct DevicePair::State {
  std::shared_ptr<Workspace> host, slots;
  // Of the largest layer. The first four are host memory that the device with the slots accesses at
  // full speed.
  Buffer hidden, ids, weights, sum;
  Buffer packed;  // the expert of the first pending move; likewise
  std::deque<PendingMove> pending;
  MoveBudget budget{0};
  Buffer sum_arrived;  // the host's part of a sum, in memory of the device with the slots

  Device& device() const { return slots->device(); }
  /// Makes the memory large enough for a layer. Errors: memory.
  Status reserve(const Plan& slots_plan, int64_t slot_bytes);
};

}  // namespace moracle
