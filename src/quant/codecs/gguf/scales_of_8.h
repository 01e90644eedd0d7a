// The packed scales and minimums of Q4_K and Q5_K.
#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Eight groups of 32, each with a scale and a minimum of 6 bits in 12 bytes s:
///
///   group    scale                                  minimum
///   g < 4    s[g] & 63                              s[4 + g] & 63
///   g >= 4   (s[4 + g] & 15) | s[g - 4] >> 6 << 4   s[4 + g] >> 4 | s[g] >> 6 << 4
///
/// At the start of the block: f16 d, f16 dmin, then these bytes. Scales become d * scale, minimums
/// dmin * minimum, both exact in f32.
inline void unpack_scales_of_8(const std::byte* block, BlockNumbers& to) {
  const float d = f16_at(block), least = f16_at(block + 2);
  to.scale_factor = d;
  to.minimum_factor = least;
  const std::byte* const s = block + 4;
  for (int g = 0; g < 4; ++g) {
    to.scales[g] = d * static_cast<float>(byte_at(s, g) & 63);
    to.minimums[g] = least * static_cast<float>(byte_at(s, 4 + g) & 63);
    const int scale = (byte_at(s, 8 + g) & 15) | byte_at(s, g) >> 6 << 4;
    const int minimum = byte_at(s, 8 + g) >> 4 | byte_at(s, 4 + g) >> 6 << 4;
    to.scales[4 + g] = d * static_cast<float>(scale);
    to.minimums[4 + g] = least * static_cast<float>(minimum);
  }
}

}  // namespace moracle
