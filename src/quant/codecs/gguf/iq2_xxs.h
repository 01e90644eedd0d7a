#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq2_xxs.h"
#include "quant/codecs/gguf/signs.h"

namespace moracle {

/// IQ2_XXS: 256 elements in 66 bytes, 2.0625 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u8   8 times 8 bytes, for each group g of 32:
///       u8   qs[4]   elements 8 t to 8 t + 7: row qs[t] of the grid
///       u32  signs   bits 28 to 31 the scale s; bits 7 t to 7 t + 6 the signs of elements 8 t to
///                    8 t + 7 (kSignMasksOf7)
///
///   value = (d * (0.5 + s) * 0.25) * ±grid
template <>
struct BlockOf<DType::kIQ2XXS> {
  static constexpr Block kBlock = {256, 66};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq2);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d * factor_unit(CodeSet::kIq2);
    for (int g = 0; g < 8; ++g) {
      const std::byte* const q = block + 2 + 8 * g;
      const auto word = number_at<uint32_t>(q + 4);
      to.scales[g] = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
      for (int t = 0; t < 4; ++t)
        store_signed(kIq2XxsGrid[byte_at(q, t)], kSignMasksOf7[word >> (7 * t) & 127],
                     to.codes + 32 * g + 8 * t);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
