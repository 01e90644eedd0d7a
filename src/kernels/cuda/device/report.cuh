// Reports an error from a kernel to the next synchronize.
#pragma once

#include "kernels/cuda/device/device_error.h"

namespace moracle::cuda {

/// Keeps the error with the lowest index.
__device__ inline void report(DeviceErrorCell* cell, int64_t index, int32_t value, int64_t limit,
                              int64_t per_token) {
  const unsigned long long key =
      static_cast<unsigned long long>(index) << 32 | static_cast<uint32_t>(value);
  atomicMin(&cell->first, key);
  cell->limit = limit;  // all threads of a kernel write the same value
  cell->per_token = per_token;
}

}  // namespace moracle::cuda
