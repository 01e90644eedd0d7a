// What kernels find wrong with ids and counts, kept on the GPU until the device is synchronized.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "moracle/base.h"

namespace moracle::cuda {

enum class DeviceErrorKind : int { kIds, kCounts, kLoraIds, kKvCache };
inline constexpr int kDeviceErrorKinds = 4;

/// One of a kind, as kernels write it: the first in the order of places.
struct DeviceErrorCell {
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long first;  ///< place << 32 | value; kNone: nothing
  int64_t limit;             ///< what the value has to be below, or at most
  int64_t per_token;         ///< places of one token
};

class DeviceErrors {
 public:
  DeviceErrors() = default;
  DeviceErrors(const DeviceErrors&) = delete;
  DeviceErrors& operator=(const DeviceErrors&) = delete;
  ~DeviceErrors();
  /// On the current device.
  Status open(cudaStream_t stream);
  /// Waits for the stream. Errors: what its kernels found, said once; what the stream ran into.
  Status take(cudaStream_t stream);
  /// In device memory.
  DeviceErrorCell* cell(DeviceErrorKind kind) const { return device_ + static_cast<int>(kind); }

 private:
  Status reset(cudaStream_t stream);
  DeviceErrorCell* device_ = nullptr;
  DeviceErrorCell* host_ = nullptr;  // pinned: what was read, then nothing of each kind
};

}  // namespace moracle::cuda
