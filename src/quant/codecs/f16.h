#pragma once

#include <cstring>

#include "base/scalar.h"
#include "quant/codec_of.h"

namespace moracle {

/// IEEE binary16, little-endian.
template <>
struct CodecOf<DType::kF16> {
  static float decode(const std::byte* row, int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    return f16_to_float(bits);
  }
};

}  // namespace moracle
