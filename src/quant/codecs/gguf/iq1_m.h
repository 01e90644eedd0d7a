#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq1.h"

namespace moracle {

/// IQ1_M: 256 elements in 56 bytes, 1.75 bits each. int8 codes of 16, symmetric.
///
///   0   u8   qs[32]      bits 0 to 7 of the grid's row t, which holds elements 8 t to 8 t + 7
///   32  u8   qh[16]      nibble t: bits 0 to 2 are bits 8 to 10 of row t; bit 3 is 1 if delta is
///                        -1/8, else delta is 1/8
///   48  u16  scales[4]   group g of 16: its scale s is bits 3 i to 3 i + 2 of scales[g / 4], with
///                        i = g % 4; bits 12 to 15 of scales[i] are bits 4 i to 4 i + 3 of d, f16
///
///   value = (d * (2 s + 1)) * (grid + delta), grid -1, 0 or 1
///
/// The code is 8 (grid + delta), the scale d * (2 s + 1) / 8.
template <>
struct BlockOf<DType::kIQ1M> {
  static constexpr Block kBlock = {256, 56};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kIq1);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_to_float(scale_bits(block));
    to.scale_factor = d * factor_unit(CodeSet::kIq1);
    for (int g = 0; g < 16; ++g) {
      const int s = number_at<uint16_t>(block + 48 + g / 4 * 2) >> (3 * (g % 4)) & 7;
      to.scales[g] = d * static_cast<float>(2 * s + 1) * 0.125f;
    }
    for (int t = 0; t < 32; ++t) {
      const int high = nibble_at(block + 32, t);
      const int delta = (high & 8) == 0 ? 1 : -1;
      int8_t* const codes = to.codes + 8 * t;
      std::memcpy(codes, &kIq1Grid[byte_at(block, t) | (high & 7) << 8], 8);
      for (int i = 0; i < 8; ++i) codes[i] = static_cast<int8_t>(codes[i] + delta);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(scale_bits(block)); }

 private:
  static uint16_t scale_bits(const std::byte* block) {
    int bits = 0;
    for (int i = 0; i < 4; ++i) bits |= number_at<uint16_t>(block + 48 + 2 * i) >> 12 << (4 * i);
    return static_cast<uint16_t>(bits);
  }
};

}  // namespace moracle
