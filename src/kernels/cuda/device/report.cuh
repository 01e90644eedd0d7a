// What is wrong with an id, from a kernel to the next synchronize.
#pragma once

#include "kernels/cuda/device/device_error.h"

namespace moracle::cuda {

/// The first in the order of places is kept.
__device__ inline void report(DeviceErrorCell* cell, int64_t place, int32_t value, int64_t limit,
                              int64_t per_token) {
  const unsigned long long key =
      static_cast<unsigned long long>(place) << 32 | static_cast<uint32_t>(value);
  atomicMin(&cell->first, key);
  cell->limit = limit;  // the same from every thread of a kernel
  cell->per_token = per_token;
}

}  // namespace moracle::cuda
