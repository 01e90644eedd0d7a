#pragma once

#include "quant/codecs/gguf/encode/block_encoder.h"
#include "quant/codecs/gguf/q4_0.h"

namespace moracle {

/// d = fit_scale over codes -8 to 7, rounded to f16; q = round(x / d).
template <>
struct BlockEncoder<DType::kQ4_0> {
  static void encode(const float* x, std::byte* block) {
    float w[32];
    importance_of<32>(x, w);
    const float inverse = inverse_or_zero(store_f16(fit_scale<32>(x, w, -8), block));
    uint8_t codes[32];
    for (int i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(symmetric_code(x[i], inverse, -8) + 8);
    store_nibble_halves(codes, block + 2);
  }
};

}  // namespace moracle
