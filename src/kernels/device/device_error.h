// Errors that kernels find in ids, counts and cached values. They stay on the GPU until the device
// is synchronized.
#pragma once

#include <cstdint>

#include "kernels/device/error_scopes.h"
#include "moracle/base.h"

namespace moracle {

enum class DeviceErrorKind : int { kIds, kCounts, kLoraIds, kKvCache };
inline constexpr int kDeviceErrorKinds = 4;
/// The place of an error: "layer: topk_ids", or "topk_ids" without a layer.
std::string error_place(const std::string& layer, const char* argument);

/// One error of a kind, as kernels write it: the one with the lowest index.
struct DeviceErrorCell {
  static constexpr unsigned long long kNone = ~0ull;
  unsigned long long first = kNone;  ///< index << 32 | value; kNone: no error
  int64_t limit = 0;                 ///< bound of the value, exclusive or inclusive by kind
  int64_t per_token = 1;             ///< indices per token
};

/// Cells of a device: those of scope 0 by kind, then those of scope 1, and so on.
inline constexpr int kDeviceErrorCells = kDeviceErrorKinds * ErrorScopes::kMost;
inline int error_cell(const ErrorScopes& scopes, DeviceErrorKind kind) {
  return scopes.current() * kDeviceErrorKinds + static_cast<int>(kind);
}
inline int num_error_cells(const ErrorScopes& scopes) {
  return scopes.end() * kDeviceErrorKinds;
}
/// The first error in num_error_cells() cells, as users read it. Errors: that one.
Status first_error(const DeviceErrorCell* cells, const ErrorScopes& scopes);

}  // namespace moracle
