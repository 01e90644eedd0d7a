#pragma once

#include "quant/codec_of.h"

namespace moracle {

/// Two's complement nibble, -8 to 7. The low nibble of a byte is the even column. (The packed codes
/// of GPTQ and compressed-tensors are this + 8.)
template <>
struct CodecOf<DType::kI4> {
  static int decode(const std::byte* row, int64_t i) {
    const int nibble = static_cast<int>(row[i / 2]) >> (4 * (i % 2)) & 15;
    return (nibble ^ 8) - 8;
  }
};

}  // namespace moracle
