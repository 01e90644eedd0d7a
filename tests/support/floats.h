// Random floats, and conversions of whole vectors between f32 and the 16-bit float types.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/scalar.h"
#include "moracle/quant.h"

namespace moracle::testing {

/// `count` normal numbers with standard deviation `size`.
inline std::vector<float> normal_floats(std::mt19937& random, int64_t count, float size = 1) {
  std::normal_distribution<float> distribution(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// The bits of `value` in bf16 or f16.
inline uint16_t half_bits(DType dtype, float value) {
  return dtype == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
}
inline std::vector<uint16_t> half_bits(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(half_bits(dtype, value));
  return bits;
}
inline float float_of_half(DType dtype, uint16_t bits) {
  return dtype == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

/// `value` after storing it as f32, bf16, f16 or e4m3.
inline float rounded_to(DType dtype, float value) {
  if (dtype == DType::kF8E4M3) return e4m3_to_float(float_to_e4m3(value));
  return dtype == DType::kF32 ? value : float_of_half(dtype, half_bits(dtype, value));
}
inline std::vector<float> rounded_to(DType dtype, std::vector<float> values) {
  for (float& value : values) value = rounded_to(dtype, value);
  return values;
}

}  // namespace moracle::testing
