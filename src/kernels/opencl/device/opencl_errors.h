// The cells of an OpenCL device in which its kernels report errors.
#pragma once

#include "kernels/device/device_error.h"
#include "kernels/opencl/device/opencl_queue.h"

namespace moracle::opencl {

class DeviceErrors {
 public:
  /// Allocates the cells.
  Status open(const Queue& queue);
  /// Waits for the queue. Errors: an error that its kernels found, reported once; a failure of the
  /// queue itself.
  Status take(const Queue& queue, Stream stream);
  /// The current layer's cell in device memory.
  DeviceErrorCell* cell(DeviceErrorKind kind) const {
    return cells_.as<DeviceErrorCell>() + error_cell(scopes_, kind);
  }
  ErrorScopes& scopes() const { return scopes_; }

 private:
  Status reset(const Queue& queue, Stream stream, int count);
  Buffer cells_;
  std::vector<DeviceErrorCell> found_;
  mutable ErrorScopes scopes_;  // kernels' launchers have the errors as const
};

}  // namespace moracle::opencl
