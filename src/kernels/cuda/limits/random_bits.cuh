// Pseudo-random numbers, generated where they are needed.
#pragma once

#include <cstdint>

#include "kernels/limits.h"

namespace moracle::cuda {

/// The 32-bit finalizer of MurmurHash3.
__device__ inline uint32_t random_bits(uint32_t seed) {
  seed = (seed + 0x9e3779b9u) * 0x85ebca6bu;
  seed = (seed ^ (seed >> 13)) * 0xc2b2ae35u;
  return seed ^ (seed >> 16);
}

/// Turns random bits into a float from 1/2 to 1.
__device__ inline float unit_float(uint32_t bits) {
  return __uint_as_float((bits & 0x007fffffu) | 0x3f000000u);
}

/// Turns random bits into codes of a format. Floats are from ±1/2 to ±2, so that sums stay finite.
template <Arithmetic kind>
__device__ uint32_t codes_of(uint32_t bits) {
  switch (kind) {
    case Arithmetic::kF16:
      return (bits & 0x87ff87ffu) | 0x38003800u;
    case Arithmetic::kBf16:
      return (bits & 0x80ff80ffu) | 0x3f003f00u;
    case Arithmetic::kFp8:
      return (bits & 0x8f8f8f8fu) | 0x30303030u;
    default:
      return bits;
  }
}

}  // namespace moracle::cuda
