#pragma once

#include <cstring>

#include "base/scalar.h"
#include "quant/codec_of.h"

namespace moracle {

/// The upper half of an f32, little-endian.
template <>
struct CodecOf<DType::kBF16> {
  static float decode(const std::byte* row, int64_t i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, sizeof bits);
    return bf16_to_float(bits);
  }
};

}  // namespace moracle
