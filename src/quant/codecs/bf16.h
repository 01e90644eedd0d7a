#pragma once

#include <cstring>

#include "base/scalar.h"
#include "moracle/base.h"

namespace moracle {

/// The upper half of an f32, little-endian.
struct BF16Codec {
  static constexpr DType kDType = DType::kBF16;
  static float decode(const std::byte* row, int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    return bf16_to_float(bits);
  }
};

}  // namespace moracle
