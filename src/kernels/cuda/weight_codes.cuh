// Dequantizes canonical rows, by the definitions of quant/codecs/ and base/scalar.h.
#pragma once

#include "base/scalar.h"
#include "moracle/base.h"

namespace moracle::cuda {

template <DType type>
struct WeightCode;

template <>
struct WeightCode<DType::kBF16> {
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return bf16_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  }
};
template <>
struct WeightCode<DType::kF16> {
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return f16_to_float(reinterpret_cast<const uint16_t*>(row)[i]);
  }
};
template <>
struct WeightCode<DType::kF32> {
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return reinterpret_cast<const float*>(row)[i];
  }
};
template <>
struct WeightCode<DType::kF8E4M3> {
  __device__ static float decode(const uint8_t* row, int64_t i) { return e4m3_to_float(row[i]); }
};

__device__ inline int nibble(const uint8_t* row, int64_t i) {
  return row[i / 2] >> (4 * (i % 2)) & 15;
}

// Codes that are integers or halves of integers can also be summed exactly. whole() counts in units
// of kUnit.
template <>
struct WeightCode<DType::kI8> {
  static constexpr float kUnit = 1;
  __device__ static int32_t whole(const uint8_t* row, int64_t i) {
    return static_cast<int8_t>(row[i]);
  }
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return static_cast<float>(whole(row, i));
  }
};
template <>
struct WeightCode<DType::kI4> {
  static constexpr float kUnit = 1;
  __device__ static int32_t whole(const uint8_t* row, int64_t i) {
    return (nibble(row, i) ^ 8) - 8;
  }
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return static_cast<float>(whole(row, i));
  }
};
template <>
struct WeightCode<DType::kF4E2M1> {
  static constexpr float kUnit = 0.5f;
  __device__ static int32_t whole(const uint8_t* row, int64_t i) {
    return static_cast<int32_t>(2 * decode(row, i));
  }
  __device__ static float decode(const uint8_t* row, int64_t i) {
    return e2m1_to_float(static_cast<uint8_t>(nibble(row, i)));
  }
};

}  // namespace moracle::cuda
