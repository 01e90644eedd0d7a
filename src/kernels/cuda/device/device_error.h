// Errors that kernels find in ids, counts and cached values. They stay on the GPU until the device
// is synchronized.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moracle/base.h"

namespace moracle::cuda {

enum class DeviceErrorKind : int { kIds, kCounts, kLoraIds, kKvCache };
inline constexpr int kDeviceErrorKinds = 4;

/// One error of a kind, as kernels write it: the one with the lowest place.
struct DeviceErrorCell {
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long first;  ///< place << 32 | value; kNone: no error
  int64_t limit;             ///< bound of the value, exclusive or inclusive by kind
  int64_t per_token;         ///< places per token
};

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
