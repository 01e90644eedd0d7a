// Errors that kernels find in ids, counts and cached values. They stay on the GPU until the device
// is synchronized.
#pragma once

#include <cstdint>

#include "moracle/base.h"

namespace moracle {

enum class DeviceErrorKind : int { kIds, kCounts, kLoraIds, kKvCache };
inline constexpr int kDeviceErrorKinds = 4;

/// One error of a kind, as kernels write it: the one with the lowest place.
struct DeviceErrorCell {
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long first = kNone;  ///< place << 32 | value; kNone: no error
  int64_t limit = 0;                 ///< bound of the value, exclusive or inclusive by kind
  int64_t per_token = 1;             ///< places per token
};

/// The error that a cell holds, as users read it.
Error error_of(DeviceErrorKind kind, const DeviceErrorCell& cell);

}  // namespace moracle
