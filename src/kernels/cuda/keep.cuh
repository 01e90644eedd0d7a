// Stores a key or value element in the cache's dtype.
#pragma once

#include "base/scalar.h"
#include "kernels/cuda/device/report.cuh"
#include "moracle/quant.h"

namespace moracle::cuda {

/// Stores `value` as element `at`. Reports a finite value that f16 would turn into infinity.
__device__ inline void keep(std::byte* to, DType dtype, int64_t at, float value, int64_t token,
                            DeviceErrorCell* device_error) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(to)[at] = value;
  } else if (dtype == DType::kBF16) {
    reinterpret_cast<uint16_t*>(to)[at] = float_to_bf16(value);
  } else if (dtype == DType::kF8E4M3) {
    reinterpret_cast<uint8_t*>(to)[at] = float_to_e4m3(value);  // saturates
  } else {
    const uint16_t half = float_to_f16(value);
    reinterpret_cast<uint16_t*>(to)[at] = half;
    if ((half & 0x7fffu) == 0x7c00u && isfinite(value))
      report(device_error, token, __float_as_int(value), 0, 1);
  }
}

}  // namespace moracle::cuda
