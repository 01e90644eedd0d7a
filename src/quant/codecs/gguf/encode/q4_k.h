#pragma once

#include <algorithm>
#include <cmath>

#include "quant/codecs/gguf/encode/block_encoder.h"
#include "quant/codecs/gguf/q4_k.h"

namespace moracle {

/// fit_scale_and_minimum gives each group of 32 its scale and minimum. The largest become 63: d =
/// max scale / 63, dmin = max minimum / 63, both rounded to f16; the others are rounded to their
/// multiples. Codes are then rounded for the scales and minimums as stored.
template <>
struct BlockEncoder<DType::kQ4K> {
  static void encode(const float* x, std::byte* block) {
    float scales[8], minimums[8], most_scale = 0, most_minimum = 0;
    for (int g = 0; g < 8; ++g) {
      float w[32];
      importance_of<32>(x + 32 * g, w);
      const ScaleAndMinimum fit = fit_scale_and_minimum<32>(x + 32 * g, w, 15);
      scales[g] = fit.scale;
      minimums[g] = fit.minimum;
      most_scale = std::max(most_scale, fit.scale);
      most_minimum = std::max(most_minimum, fit.minimum);
    }
    const float d = store_f16(most_scale / 63, block);
    const float least = store_f16(most_minimum / 63, block + 2);
    if (!std::isfinite(d) || !std::isfinite(least)) return;  // beyond f16, which the caller refuses
    const auto six_bits = [](float value, float unit) {
      const float steps = std::clamp(value * inverse_or_zero(unit), 0.0f, 63.0f);
      return static_cast<uint8_t>(nearest_integer(steps));
    };
    uint8_t s[8], m[8];
    for (int g = 0; g < 8; ++g) {
      s[g] = six_bits(scales[g], d);
      m[g] = six_bits(minimums[g], least);
    }
    store_scales_of_8(s, m, block + 4);
    for (int g = 0; g < 8; g += 2) {
      std::byte* const to = block + 16 + 16 * g;
      for (int l = 0; l < 32; ++l) {
        const auto code = [&](int group) {
          return static_cast<int>(
              shifted_code(x[32 * group + l], least * static_cast<float>(m[group]),
                           inverse_or_zero(d * static_cast<float>(s[group])), 15));
        };
        to[l] = static_cast<std::byte>(code(g) | code(g + 1) << 4);
      }
    }
  }

 private:
  // The inverse of unpack_scales_of_8.
  static void store_scales_of_8(const uint8_t* s, const uint8_t* m, std::byte* to) {
    for (int g = 0; g < 4; ++g) {
      to[g] = static_cast<std::byte>(s[g] | (s[4 + g] >> 4) << 6);
      to[4 + g] = static_cast<std::byte>(m[g] | (m[4 + g] >> 4) << 6);
      to[8 + g] = static_cast<std::byte>((s[4 + g] & 15) | (m[4 + g] & 15) << 4);
    }
  }
};

}  // namespace moracle
