#pragma once

#include <cstring>

#include "quant/codec_of.h"

namespace moracle {

/// IEEE binary32, little-endian.
template <>
struct CodecOf<DType::kF32> {
  static float decode(const std::byte* row, int64_t i) {
    float value;
    std::memcpy(&value, row + 4 * i, sizeof value);
    return value;
  }
};

}  // namespace moracle
