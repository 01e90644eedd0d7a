#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq3_xxs.h"
#include "quant/codecs/gguf/signs.h"

namespace moracle {

/// IQ3_XXS: 256 elements in 98 bytes, 3.0625 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u8   qs[64]     element 4 i + j: entry j of row qs[i] of the grid
///   66  u32  signs[8]   group g of 32: bits 28 to 31 its scale s; bits 7 t to 7 t + 6 the signs of
///                       elements 8 t to 8 t + 7 (kSignMasksOf7)
///
///   value = (d * (0.5 + s) * 0.5) * ±grid
template <>
struct BlockOf<DType::kIQ3XXS> {
  static constexpr Block kBlock = {256, 98};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq3Xxs);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d * factor_unit(CodeSet::kIq3Xxs);
    for (int g = 0; g < 8; ++g) {
      const auto word = number_at<uint32_t>(block + 66 + 4 * g);
      to.scales[g] = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
      for (int t = 0; t < 4; ++t) {
        const std::byte* const q = block + 2 + 8 * g + 2 * t;
        store_signed(two_lines(kIq3XxsGrid[byte_at(q, 0)], kIq3XxsGrid[byte_at(q, 1)]),
                     kSignMasksOf7[word >> (7 * t) & 127], to.codes + 32 * g + 8 * t);
      }
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
