#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq2_s.h"
#include "quant/codecs/gguf/signs.h"

namespace moracle {

/// IQ2_S: 256 elements in 82 bytes, 2.5625 bits each. int8 codes of 16, symmetric.
///
///   0   f16  d
///   2   u8   qs[32]      bits 0 to 7 of the grid's row t, which holds elements 8 t to 8 t + 7
///   34  u8   signs[32]   element 8 t + j: bit j of signs[t]; 1 is minus
///   66  u8   qh[8]       row 4 i + j: bits 2 j and 2 j + 1 of qh[i] are bits 8 and 9
///   74  u8   scales[8]   nibble g: the scale s of group g of 16
///
///   value = (d * (0.5 + s) * 0.25) * ±grid
template <>
struct BlockOf<DType::kIQ2S> {
  static constexpr Block kBlock = {256, 82};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kIq2);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d * factor_unit(CodeSet::kIq2);
    for (int g = 0; g < 16; ++g)
      to.scales[g] = d * (0.5f + static_cast<float>(nibble_at(block + 74, g))) * 0.25f;
    for (int t = 0; t < 32; ++t) {
      const int high = byte_at(block + 66, t / 4) >> (2 * (t % 4)) & 3;
      store_signed(kIq2SGrid[byte_at(block + 2, t) | high << 8], kSignMasks[byte_at(block + 34, t)],
                   to.codes + 8 * t);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
