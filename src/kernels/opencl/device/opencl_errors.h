// The cells of an OpenCL device in which its kernels report errors.
#pragma once

#include "kernels/device_error.h"
#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

class DeviceErrors {
 public:
  /// Allocates the cells.
  Status open(const Queue& queue);
  /// Waits for the queue. Errors: an error that its kernels found, reported once; a failure of the
  /// queue itself.
  Status take(const Queue& queue, Stream stream);
  /// A cell in device memory.
  DeviceErrorCell* cell(DeviceErrorKind kind) const {
    return cells_.as<DeviceErrorCell>() + static_cast<int>(kind);
  }

 private:
  Status reset(const Queue& queue, Stream stream);
  Buffer cells_;
};

}  // namespace moracle::opencl
