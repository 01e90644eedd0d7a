// Scales and codes of quantized activations, to the same bits as quant/activation.h.
#pragma once

#include <cuda_bf16.h>

#include "base/scalar.h"
#include "layout/fragment_order.h"
#include "moracle/quant.h"

namespace moracle::cuda {

/// Magnitudes are compared by their bits, which have the same order: infinity and NaN are largest.
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// Same as scale_for. `largest` must be below infinity.
__device__ inline float scale_of(const QuantKey& key, float largest) {
  if (key.dtype == DType::kI8) return fmaxf(largest, 1e-10f) / 127.0f;
  if (key.scale_dtype != DType::kF8E8M0) return fmaxf(largest, 1e-10f) / 448.0f;
  const uint32_t bits = __float_as_uint(largest / 448.0f);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return e8m0_to_float(static_cast<uint8_t>(min(exponent, 254u)));
}

__device__ inline uint8_t code_of(const QuantKey& key, float value, float scale) {
  if (key.dtype != DType::kI8) return float_to_e4m3(value / scale);
  const float rounded = fminf(fmaxf(rintf(value / scale), -128.0f), 127.0f);
  return static_cast<uint8_t>(static_cast<int8_t>(rounded));
}

/// The scale of a group from the bits of its largest magnitude; NaN if that is not finite.
__device__ inline float scale_of_bits(const QuantKey& key, uint32_t largest) {
  return largest < kInfinityBits ? scale_of(key, __uint_as_float(largest))
                                 : __uint_as_float(0x7fc00000u);
}

/// Eight neighbouring bf16.
struct EightValues {
  float values[8];
  __device__ explicit EightValues(const uint16_t* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    const uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(pairs[i] << 16);
      values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
  }
  __device__ uint32_t largest() const {
    uint32_t bits = 0;
#pragma unroll
    for (const float value : values) bits = max(bits, __float_as_uint(value) & 0x7fffffffu);
    return bits;
  }
  /// Stores the codes of columns `column` to column + 7 of a row, in natural or in fragment order.
  __device__ void put(const QuantKey& key, float scale, bool finite, uint8_t* row, int column,
                      bool fragments) const {
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; finite && i < 8; ++i)
      words[i / 4] |= uint32_t{code_of(key, values[i], scale)} << (8 * (i % 4));
    if (!fragments) {
      *reinterpret_cast<uint2*>(row + column) = {words[0], words[1]};
      return;
    }
    auto* const to = reinterpret_cast<uint32_t*>(row);
    to[fragment_order::position(1, column / 4)] = words[0];
    to[fragment_order::position(1, column / 4 + 1)] = words[1];
  }
};

}  // namespace moracle::cuda
