#pragma once

#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/iq4_nl.h"

namespace moracle {

/// IQ4_XS: 256 elements in 136 bytes, 4.25 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u16  scales_h      group g of 32: bits 2 g and 2 g + 1 are bits 4 and 5 of its scale
///   4   u8   scales_l[4]   nibble g: bits 0 to 3
///   8   u8   qs[128]       group g: bytes 16 g to 16 g + 15, as Q4_0
///
///   value = (d * (scale - 32)) * kIq4Values[nibble]
template <>
struct BlockOf<DType::kIQ4XS> {
  static constexpr Block kBlock = {256, 136};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq4);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d;
    const int high = number_at<uint16_t>(block + 2);
    for (int g = 0; g < 8; ++g) {
      const int scale = nibble_at(block + 4, g) | (high >> (2 * g) & 3) << 4;
      to.scales[g] = d * static_cast<float>(scale - 32);
      for (int i = 0; i < 16; ++i) {
        const int byte = byte_at(block + 8 + 16 * g, i);
        to.codes[32 * g + i] = kIq4Values[byte & 15];
        to.codes[32 * g + 16 + i] = kIq4Values[byte >> 4];
      }
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
