#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq1.h"

namespace moracle {

/// IQ1_S: 256 elements in 50 bytes, 1.5625 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u8   qs[32]   bits 0 to 7 of the grid's row t, which holds elements 8 t to 8 t + 7
///   34  u16  qh[8]    group g of 32: bits 3 j to 3 j + 2 are bits 8 to 10 of row 4 g + j; bits
///                     12 to 14 are its scale s; bit 15 is 1 if delta is -1/8, else delta is 1/8
///
///   value = (d * (2 s + 1)) * (grid + delta), grid -1, 0 or 1
///
/// The code is 8 (grid + delta), the scale d * (2 s + 1) / 8.
template <>
struct BlockOf<DType::kIQ1S> {
  static constexpr Block kBlock = {256, 50};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq1);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d * factor_unit(CodeSet::kIq1);
    for (int g = 0; g < 8; ++g) {
      const int high = number_at<uint16_t>(block + 34 + 2 * g);
      to.scales[g] = d * static_cast<float>(2 * (high >> 12 & 7) + 1) * 0.125f;
      const int delta = high >> 15 == 0 ? 1 : -1;
      int8_t* const codes = to.codes + 32 * g;
      for (int j = 0; j < 4; ++j) {
        const int line = byte_at(block + 2, 4 * g + j) | (high >> (3 * j) & 7) << 8;
        std::memcpy(codes + 8 * j, &kIq1Grid[line], 8);
      }
      for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(codes[i] + delta);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
