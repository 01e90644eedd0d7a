// Exact conversions of floats with 16 bits and fewer, stored as bits. Storage types without
// arithmetic. The functions are constexpr so that GPU code shares these definitions.
#pragma once

#include <bit>
#include <cstdint>

namespace moracle {

/// Upper half of an f32.
constexpr float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Round to nearest, ties to even; NaN stays NaN.
constexpr uint16_t float_to_bf16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// IEEE binary16 to f32, exactly, subnormals and NaN payloads included.
constexpr float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 31u;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

/// Round to nearest, ties to even; overflow to infinity; NaN stays NaN.
constexpr uint16_t float_to_f16(float value) {
  const auto u = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves the subnormal's ten bits, rounded to even, in the lowest bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

/// E4M3 as OCP and NVIDIA define it ("FN"): bias 7, no infinities, S.1111.111 is NaN, largest 448.
constexpr float e4m3_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  if ((bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

/// Round to nearest, ties to even; beyond 448 saturates; NaN stays NaN.
constexpr uint8_t float_to_e4m3(float value) {
  // Computes every case on signed integers and selects one, so that loops over it vectorize.
  const auto u = std::bit_cast<uint32_t>(value);
  const auto magnitude = static_cast<int32_t>(u & 0x7fffffffu);
  // Below 2^-6: adding 2^14 leaves multiples of 2^-9, rounded to even, in the lowest bits.
  const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
  const int32_t small = std::bit_cast<int32_t>(shifted) - 0x46800000;
  const int32_t large = (magnitude - 0x3c000000 + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
  int32_t code = magnitude < 0x3c800000 ? small : large;
  code = magnitude >= 0x43e00000 ? 0x7e : code;  // 448 and above
  code = magnitude > 0x7f800000 ? 0x7f : code;
  return static_cast<uint8_t>((u >> 24 & 0x80u) | static_cast<uint32_t>(code));
}

/// E8M0: 2^(bits - 127); 255 is NaN.
constexpr float e8m0_to_float(uint8_t bits) {
  if (bits == 255) return std::bit_cast<float>(0x7fc00000u);
  return bits == 0 ? 0x1p-127f : std::bit_cast<float>(static_cast<uint32_t>(bits) << 23);
}

/// E2M1, the low four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
constexpr float e2m1_to_float(uint8_t bits) {
  constexpr float kMagnitude[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kMagnitude[bits & 7u];
  return (bits & 8u) != 0 ? -magnitude : magnitude;
}

}  // namespace moracle
