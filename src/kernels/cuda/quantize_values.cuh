// Scales and codes of quantized activations, to the same bits as quant/activation.h.
#pragma once

#include <cuda_bf16.h>

#include "base/scalar.h"
#include "kernels/cuda/ptx/arithmetic.cuh"
#include "kernels/cuda/ptx/convert.cuh"
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

/// Divides many bf16 values by one scale: a step of Markstein's on the reciprocal. The last bit of
/// a quotient may be off, but the codes are those of exact quotients: true for all pairs of
/// mantissas of a value and of the largest value, in int8 and in e4m3.
class Divisor {
 public:
  __device__ explicit Divisor(float by) : by_(by), reciprocal_(1.0f / by) {}
  __device__ float operator()(float value) const {
    const float quotient = value * reciprocal_;
    return __fmaf_rn(__fmaf_rn(-by_, quotient, value), reciprocal_, quotient);
  }

 private:
  float by_, reciprocal_;
};

/// Four codes of int8. The values are at most 127: a sum with 1.5 · 2^23 ends with the rounded one.
__device__ inline uint32_t four_i8(const float (&values)[4]) {
  uint32_t sums[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = __float_as_uint(values[i] + 12582912.0f);
  return __byte_perm(__byte_perm(sums[0], sums[1], 0x0040), __byte_perm(sums[2], sums[3], 0x0040),
                     0x5410);
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

/// Rounds two values to e4m3 codes with a power-of-two scale, and returns the values of the codes
/// in bf16. NaN if the scale is NaN.
__device__ inline uint32_t rounded_e4m3(float first, float second, float scale) {
  const float inverse = 1.0f / scale;  // exact
  const uint32_t codes = to_e4m3_pair(first * inverse, second * inverse);
  const float two[] = {e4m3_to_float(static_cast<uint8_t>(codes)) * scale,
                       e4m3_to_float(static_cast<uint8_t>(codes >> 8)) * scale};
  return __float_as_uint(two[0]) >> 16 | (__float_as_uint(two[1]) & 0xffff0000u);
}

/// Eight neighbouring bf16.
class EightValues {
 public:
  __device__ explicit EightValues(const uint16_t* from)
      : EightValues(*reinterpret_cast<const uint4*>(from)) {}
  __device__ explicit EightValues(const uint4& words)
      : pairs_{words.x, words.y, words.z, words.w} {}
  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? pairs_[i / 2] << 16 : pairs_[i / 2] & 0xffff0000u);
  }
  /// Bits of the largest magnitude, as of a float.
  __device__ uint32_t largest() const {
    uint32_t both = 0;
#pragma unroll
    for (const uint32_t pair : pairs_) both = max_u16x2(both, pair & 0x7fff7fffu);
    return max(both << 16, both & 0xffff0000u);
  }
  /// Returns the eight codes, or zeros if the scale is not finite.
  __device__ uint2 codes(const QuantKey& key, float scale, bool finite) const {
    if (!finite) return {0, 0};
    const Divisor divide(scale);
    uint32_t words[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      float four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = divide((*this)[4 * w + i]);
      words[w] = key.dtype == DType::kI8
                     ? four_i8(four)
                     : to_e4m3_pair(four[0], four[1]) | to_e4m3_pair(four[2], four[3]) << 16;
    }
    return {words[0], words[1]};
  }

 private:
  uint32_t pairs_[4];
};

}  // namespace moracle::cuda
