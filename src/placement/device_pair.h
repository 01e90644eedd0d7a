// What placed layers share.
#pragma once

#include "moracle/placement.h"

namespace moracle {

struct DevicePair::State {
  std::shared_ptr<Workspace> host, slots;
  // Of the largest layer. The first four are host memory that the device with the slots accesses at
  // full speed.
  Buffer hidden, ids, weights, sum;
  Buffer packed;       // one expert on its way into a slot; likewise
  Buffer sum_arrived;  // the host's part of a sum, in memory of the device with the slots

  Device& device() const { return slots->device(); }
  /// Makes the memory large enough for a layer. Errors: memory.
  Status reserve(const Plan& slots_plan, int64_t slot_bytes);
};

}  // namespace moracle
