#pragma once

#include "base/scalar.h"
#include "quant/codec_of.h"

namespace moracle {

/// FP8 with four exponent and three mantissa bits ("FN"): largest value 448; NaN, but no
/// infinities.
template <>
struct CodecOf<DType::kF8E4M3> {
  static float decode(const std::byte* row, int64_t i) {
    return e4m3_to_float(static_cast<uint8_t>(row[i]));
  }
};

}  // namespace moracle
