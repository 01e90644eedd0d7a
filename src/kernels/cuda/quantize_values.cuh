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

/// Divides many values by one, each correctly rounded: two steps of Markstein's on the reciprocal.
/// Quotients below 2^-100 may be off.
class Divisor {
 public:
  __device__ explicit Divisor(float by) : by_(by), reciprocal_(1.0f / by) {}
  __device__ float operator()(float value) const {
    float quotient = value * reciprocal_;
#pragma unroll
    for (int step = 0; step < 2; ++step)
      quotient = __fmaf_rn(__fmaf_rn(-by_, quotient, value), reciprocal_, quotient);
    return quotient;
  }

 private:
  float by_, reciprocal_;
};

/// Two codes of e4m3, the first in the low byte. The values are not NaN.
__device__ inline uint32_t two_e4m3(float first, float second) {
#if __CUDA_ARCH__ >= 890
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(second), "f"(first));
  return codes;
#else
  return float_to_e4m3(first) | uint32_t{float_to_e4m3(second)} << 8;
#endif
}
__device__ inline uint32_t two_i8(float first, float second) {
  const auto code = [](float value) {
    return static_cast<uint32_t>(static_cast<int>(fminf(fmaxf(rintf(value), -128.0f), 127.0f))) &
           0xffu;
  };
  return code(first) | code(second) << 8;
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

/// Two values as codes of e4m3 with a power of two as their scale hold them, in bf16; NaN if the
/// scale is.
__device__ inline uint32_t rounded_e4m3(float first, float second, float scale) {
  const float inverse = 1.0f / scale;  // exact
  const uint32_t codes = two_e4m3(first * inverse, second * inverse);
  const float two[] = {e4m3_to_float(static_cast<uint8_t>(codes)) * scale,
                       e4m3_to_float(static_cast<uint8_t>(codes >> 8)) * scale};
  return __float_as_uint(two[0]) >> 16 | (__float_as_uint(two[1]) & 0xffff0000u);
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
    if (finite) {
      const Divisor divide(scale);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float first = divide(values[2 * i]), second = divide(values[2 * i + 1]);
        words[i / 2] |= (key.dtype == DType::kI8 ? two_i8(first, second) : two_e4m3(first, second))
                        << (16 * (i % 2));
      }
    }
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
