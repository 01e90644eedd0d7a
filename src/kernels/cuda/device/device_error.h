// The cells of an NVIDIA GPU in which its kernels report errors.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/device_error.h"
#include "moracle/device.h"

namespace moracle::cuda {

class DeviceErrors {
 public:
  DeviceErrors() = default;
  DeviceErrors(const DeviceErrors&) = delete;
  DeviceErrors& operator=(const DeviceErrors&) = delete;
  ~DeviceErrors();
  /// `cells`: kBytes of memory of the current device.
  static constexpr size_t kBytes = kDeviceErrorCells * sizeof(DeviceErrorCell);
  Status open(Buffer cells, cudaStream_t stream);
  /// Waits for the stream. Errors: an error that its kernels found, reported once; a failure of the
  /// stream itself.
  Status take(cudaStream_t stream);
  /// Returns the current layer's cell in device memory.
  DeviceErrorCell* cell(DeviceErrorKind kind) const {
    return cells_.as<DeviceErrorCell>() + error_cell(scopes_, kind);
  }
  ErrorScopes& scopes() const { return scopes_; }

 private:
  Status reset(cudaStream_t stream, int count);
  Buffer cells_;
  DeviceErrorCell* host_ = nullptr;  // pinned: cells that were read, then empty cells
  mutable ErrorScopes scopes_;       // kernels' launchers have the errors as const
};

}  // namespace moracle::cuda
