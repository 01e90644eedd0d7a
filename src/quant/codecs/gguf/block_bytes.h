// Reads the fields of a block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/scalar.h"
#include "quant/blocks/block_of.h"

namespace moracle {

template <class Number>
Number number_at(const std::byte* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

inline int byte_at(const std::byte* from, int i) {
  return static_cast<int>(from[i]);
}

/// Nibble i: the low nibble of a byte is the even one.
inline int nibble_at(const std::byte* from, int i) {
  return byte_at(from, i / 2) >> (4 * (i % 2)) & 15;
}

inline float f16_at(const std::byte* from) {
  return f16_to_float(number_at<uint16_t>(from));
}

inline bool is_finite_f16(uint16_t bits) {
  return (bits & 0x7c00u) != 0x7c00u;
}
inline bool is_finite_f16(const std::byte* from) {
  return is_finite_f16(number_at<uint16_t>(from));
}

}  // namespace moracle
