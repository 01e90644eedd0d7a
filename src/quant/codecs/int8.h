#pragma once

#include "quant/codec_of.h"

namespace moracle {

/// Two's complement byte, -128 to 127. (The packed codes of GPTQ and compressed-tensors are this +
/// 128.)
template <>
struct CodecOf<DType::kI8> {
  static int decode(const std::byte* row, int64_t i) { return static_cast<int8_t>(row[i]); }
};

}  // namespace moracle
