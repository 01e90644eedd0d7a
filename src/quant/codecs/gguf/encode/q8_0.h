#pragma once

#include "quant/codecs/gguf/encode/block_encoder.h"
#include "quant/codecs/gguf/q8_0.h"

namespace moracle {

/// d = max |x| / 127, rounded to f16; q = round(x / d) within ±127. With 8 bits, a search for d
/// gains less than the rounding error.
template <>
struct BlockEncoder<DType::kQ8_0> {
  static void encode(const float* x, std::byte* block) {
    const float d = store_f16(std::fabs(extreme_of<32>(x)) / 127, block);
    const float inverse = inverse_or_zero(d);
    for (int i = 0; i < 32; ++i) {
      const float code = nearest_integer(std::clamp(x[i] * inverse, -127.0f, 127.0f));
      block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(code));
    }
  }
};

}  // namespace moracle
