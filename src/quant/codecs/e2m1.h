#pragma once

#include "base/scalar.h"
#include "quant/codec_of.h"

namespace moracle {

/// FP4: sign, two exponent bits, one mantissa bit. The low nibble of a byte is the even column.
template <>
struct CodecOf<DType::kF4E2M1> {
  static float decode(const std::byte* row, int64_t i) {
    const int nibble = static_cast<int>(row[i / 2]) >> (4 * (i % 2)) & 15;
    return e2m1_to_float(static_cast<uint8_t>(nibble));
  }
};

}  // namespace moracle
