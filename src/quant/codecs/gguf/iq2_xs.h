#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq2_xs.h"
#include "quant/codecs/gguf/signs.h"

namespace moracle {

/// IQ2_XS: 256 elements in 74 bytes, 2.3125 bits each. int8 codes of 16, symmetric.
///
///   0   f16  d
///   2   u16  qs[32]      elements 8 t to 8 t + 7: bits 0 to 8 the grid's row, bits 9 to 15
///                        the signs (kSignMasksOf7)
///   66  u8   scales[8]   nibble g: the scale s of group g of 16
///
///   value = (d * (0.5 + s) * 0.25) * ±grid
template <>
struct BlockOf<DType::kIQ2XS> {
  static constexpr Block kBlock = {256, 74};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kIq2);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d * factor_unit(CodeSet::kIq2);
    for (int g = 0; g < 16; ++g)
      to.scales[g] = d * (0.5f + static_cast<float>(nibble_at(block + 66, g))) * 0.25f;
    for (int t = 0; t < 32; ++t) {
      const uint32_t q = number_at<uint16_t>(block + 2 + 2 * t);
      store_signed(kIq2XsGrid[q & 511], kSignMasksOf7[q >> 9], to.codes + 8 * t);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
