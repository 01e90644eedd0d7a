#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/grids/iq3_s.h"
#include "quant/codecs/gguf/signs.h"

namespace moracle {

/// IQ3_S: 256 elements in 110 bytes, 3.4375 bits each. int8 codes of 32, symmetric.
///
///   0    f16  d
///   2    u8   qs[64]      bits 0 to 7 of the grid's row i, which holds elements 4 i to 4 i + 3
///   66   u8   qh[8]       row 8 g + j: bit j of qh[g] is bit 8
///   74   u8   signs[32]   element 8 t + j: bit j of signs[t]; 1 is minus
///   106  u8   scales[4]   nibble g: the scale s of group g of 32
///
///   value = (d * (1 + 2 s)) * ±grid
template <>
struct BlockOf<DType::kIQ3S> {
  static constexpr Block kBlock = {256, 110};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kI8), CodeSet::kIq3S);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block);
    to.scale_factor = d;
    for (int g = 0; g < 8; ++g) {
      to.scales[g] = d * static_cast<float>(1 + 2 * nibble_at(block + 106, g));
      const int high = byte_at(block + 66, g);
      for (int t = 0; t < 4; ++t) {
        const std::byte* const q = block + 2 + 8 * g + 2 * t;
        const int bits = high >> (2 * t);
        const int first = byte_at(q, 0) | (bits & 1) << 8, second = byte_at(q, 1) | (bits & 2) << 7;
        store_signed(two_lines(kIq3SGrid[first], kIq3SGrid[second]),
                     kSignMasks[byte_at(block + 74, 4 * g + t)], to.codes + 32 * g + 8 * t);
      }
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
