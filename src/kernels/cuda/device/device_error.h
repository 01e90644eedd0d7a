// The cells of an NVIDIA GPU in which its kernels report errors.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device_error.h"

namespace moracle::cuda {

class DeviceErrors {
 public:
  DeviceErrors() = default;
  DeviceErrors(const DeviceErrors&) = delete;
  DeviceErrors& operator=(const DeviceErrors&) = delete;
  ~DeviceErrors();
  /// Allocates the cells on the current device.
  Status open(cudaStream_t stream);
  /// Waits for the stream. Errors: an error that its kernels found, reported once; a failure of the
  /// stream itself.
  Status take(cudaStream_t stream);
  /// Returns a cell in device memory.
  DeviceErrorCell* cell(DeviceErrorKind kind) const { return device_ + static_cast<int>(kind); }

 private:
  Status reset(cudaStream_t stream);
  DeviceErrorCell* device_ = nullptr;
  DeviceErrorCell* host_ = nullptr;  // pinned: cells that were read, then empty cells
};

}  // namespace moracle::cuda
