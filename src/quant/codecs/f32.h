#pragma once

#include <cstring>

#include "moracle/base.h"

namespace moracle {

/// IEEE binary32, little-endian.
struct F32Codec {
  static constexpr DType kDType = DType::kF32;
  static float decode(const std::byte* row, int64_t i) {
    float value;
    std::memcpy(&value, row + 4 * i, sizeof value);
    return value;
  }
};

}  // namespace moracle
