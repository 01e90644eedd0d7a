// Device memory that a timed layer call reads and writes.
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

/// One routing in device memory.
struct OnDevice {
  Buffer ids, weights;
};
inline Result<OnDevice> upload(Device& device, const Routed& routed) {
  OnDevice there;
  MORACLE_TRY(there.ids, upload(device, routed.ids));
  MORACLE_TRY(there.weights, upload(device, routed.weights));
  return there;
}

/// Errors: an element is infinite or NaN. Finite weights never give one.
Status check_finite(Device& device, const Matrix& output);

Error cancelled();

}  // namespace moracle::timing
