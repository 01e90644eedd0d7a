#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q3_K: 256 elements in 110 bytes, 3.4375 bits each. int4 codes of 16, symmetric.
///
///   0    u8   hmask[32]   element 128 h + 32 t + l: bit 4 h + t of hmask[l]
///   32   u8   qs[64]      the same element: bits 2 t and 2 t + 1 of qs[32 h + l]
///   96   u8   scales[12]  group g of 16: bits 0 to 3 are nibble g / 8 of scales[g % 8],
///                         bits 4 and 5 are bits 2 (g / 4) and 2 (g / 4) + 1 of scales[8 + g % 4]
///   108  f16  d
///
///   value = (d * (scale - 32)) * q, q = bits of qs, minus 4 if the bit of hmask is 0
template <>
struct BlockOf<DType::kQ3K> {
  static constexpr Block kBlock = {256, 110};
  static constexpr QuantKey kForm = with_scales(int4_static_group(16), DType::kI8);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block + 108);
    to.scale_factor = d;
    const std::byte* const scales = block + 96;
    for (int g = 0; g < 16; ++g) {
      const int low = byte_at(scales, g % 8) >> (4 * (g / 8)) & 15;
      const int high = byte_at(scales, 8 + g % 4) >> (2 * (g / 4)) & 3;
      to.scales[g] = d * static_cast<float>((low | high << 4) - 32);
    }
    for (int run = 0; run < 8; ++run) {
      const std::byte* const from = block + 32 + run / 4 * 32;
      for (int l = 0; l < 32; ++l) {
        const int low = byte_at(from, l) >> (2 * (run % 4)) & 3;
        const int high = byte_at(block, l) >> run & 1;
        to.codes[32 * run + l] = static_cast<int8_t>(low + 4 * high - 4);
      }
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block + 108); }
};

}  // namespace moracle
