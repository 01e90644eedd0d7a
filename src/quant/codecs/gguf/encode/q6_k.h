#pragma once

#include <algorithm>
#include <cmath>

#include "quant/codecs/gguf/encode/block_encoder.h"
#include "quant/codecs/gguf/q6_k.h"

namespace moracle {

/// fit_scale over codes -32 to 31 gives each group of 16 its scale. The one of the largest
/// magnitude becomes -128: d = that scale / -128, rounded to f16; the others are rounded to
/// multiples of d. Codes are then rounded for the scales as stored.
template <>
struct BlockEncoder<DType::kQ6K> {
  static void encode(const float* x, std::byte* block) {
    float scales[16];
    for (int g = 0; g < 16; ++g) {
      float w[16];
      importance_of<16>(x + 16 * g, w);
      scales[g] = fit_scale<16>(x + 16 * g, w, -32);
    }
    const float d = store_f16(extreme_of<16>(scales) / -128, block + 208);
    if (!std::isfinite(d)) return;  // beyond f16, which the caller refuses
    const float per_step = inverse_or_zero(d);
    uint8_t codes[256];
    for (int g = 0; g < 16; ++g) {
      const float steps = nearest_integer(std::clamp(scales[g] * per_step, -128.0f, 127.0f));
      block[192 + g] = static_cast<std::byte>(static_cast<int8_t>(steps));
      const float inverse = inverse_or_zero(d * steps);
      for (int i = 16 * g; i < 16 * g + 16; ++i)
        codes[i] = static_cast<uint8_t>(symmetric_code(x[i], inverse, -32) + 32);
    }
    for (int h = 0; h < 2; ++h) {
      const uint8_t* const q = codes + 128 * h;
      for (int l = 0; l < 32; ++l) {
        const int q0 = q[l], q1 = q[32 + l], q2 = q[64 + l], q3 = q[96 + l];
        block[64 * h + l] = static_cast<std::byte>((q0 & 15) | (q2 & 15) << 4);
        block[64 * h + 32 + l] = static_cast<std::byte>((q1 & 15) | (q3 & 15) << 4);
        block[128 + 32 * h + l] =
            static_cast<std::byte>(q0 >> 4 | (q1 >> 4) << 2 | (q2 >> 4) << 4 | (q3 >> 4) << 6);
      }
    }
  }
};

}  // namespace moracle
