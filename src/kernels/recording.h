// Work that a device can repeat by itself, without the host: a CUDA graph.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "moracle/device.h"

namespace moracle {

class Recording {
 public:
  virtual ~Recording() = default;
  /// Repeats the work as often, and gives the seconds of each by the device's clock, without what
  /// the host takes to start it. Errors: what the work runs into.
  virtual Result<std::vector<double>> repeat(int64_t times) = 0;
};

/// Whether a device has recordings; a CPU, which works at once, has none.
bool can_record(const Device& device);

/// Records what `enqueue` puts on the stream that it is given; nothing of it runs yet, and its
/// memory must outlive the recording. Errors: of `enqueue`; work that cannot be recorded, such as
/// waiting or allocating; a device without recordings.
Result<std::unique_ptr<Recording>> record(Device& device,
                                          const std::function<Status(Stream)>& enqueue);

}  // namespace moracle
