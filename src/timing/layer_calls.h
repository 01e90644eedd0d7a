// What a call of a layer that is timed reads and writes, in the device's memory.
#pragma once

#include <vector>

#include "base/try.h"
#include "timing/layer_ring.h"

namespace moracle::timing {

template <class Value>
Result<Buffer> upload(Device& device, const std::vector<Value>& host) {
  MORACLE_TRY(Buffer buffer, device.allocate(host.size() * sizeof(Value)));
  MORACLE_CHECK(device.upload(buffer.data(), host.data(), buffer.bytes()));
  return buffer;
}

/// One routing where the device reads it.
struct OnDevice {
  Buffer ids, weights;
};
inline Result<OnDevice> upload(Device& device, const Routed& routed) {
  OnDevice there;
  MORACLE_TRY(there.ids, upload(device, routed.ids));
  MORACLE_TRY(there.weights, upload(device, routed.weights));
  return there;
}

/// Errors: an element that is infinite or NaN, which finite weights never give.
Status check_finite(Device& device, const Matrix& output);

Error cancelled();

}  // namespace moracle::timing
