#pragma once

#include "quant/codecs/gguf/encode/block_encoder.h"
#include "quant/codecs/gguf/mxfp4.h"

namespace moracle {

/// The largest magnitude is [4, 8) or [2, 4) times 2^(e - 127): of these two exponents e the one
/// with the least squared error. Codes are the nearest e2m1 numbers, at most 6.
template <>
struct BlockEncoder<DType::kMxfp4Block> {
  static void encode(const float* x, std::byte* block) {
    const float most = std::fabs(extreme_of<32>(x));
    uint8_t codes[32] = {};
    int exponent = 0;
    if (most >= kLeastMagnitude) {
      float least = -1;
      const int top = std::ilogb(most);
      for (int power = top - 2; power <= top - 1; ++power) {
        const float step = std::ldexp(1.0f, power);
        uint8_t found[32];
        float error = 0;
        for (int i = 0; i < 32; ++i) {
          found[i] = code_of(x[i] / step);
          const float away = x[i] - step * e2m1_to_float(found[i]);
          error += away * away;
        }
        if (least >= 0 && error >= least) continue;
        least = error;
        exponent = power + 127;
        std::memcpy(codes, found, sizeof codes);
      }
    }
    block[0] = static_cast<std::byte>(exponent);
    store_nibble_halves(codes, block + 1);
  }

 private:
  // Ties go to the even code. 8, minus zero, is not used.
  static uint8_t code_of(float value) {
    const float magnitude = std::fabs(value);
    uint8_t code = 0;
    if (magnitude < 2)
      code = static_cast<uint8_t>(nearest_integer(magnitude * 2));
    else if (magnitude < 4)
      code = static_cast<uint8_t>(2 + nearest_integer(magnitude));
    else
      code = static_cast<uint8_t>(4 + std::min(3.0f, nearest_integer(magnitude / 2)));
    return code != 0 && value < 0 ? static_cast<uint8_t>(code | 8) : code;
  }
};

}  // namespace moracle
