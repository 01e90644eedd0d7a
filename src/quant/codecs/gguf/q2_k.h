#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q2_K: 256 elements in 84 bytes, 2.625 bits each. int4 codes of 16 with a minimum.
///
///   0   u8   scales[16]   group g of 16: low nibble its scale s, high nibble its minimum m
///   16  u8   qs[64]       element 128 h + 32 t + l: bits 2 t and 2 t + 1 of qs[32 h + l]
///   80  f16  d
///   82  f16  dmin
///
///   value = (d * s) * q - dmin * m
template <>
struct BlockOf<DType::kQ2K> {
  static constexpr Block kBlock = {256, 84};
  static constexpr QuantKey kForm = {DType::kI4, per_group(16), false, true, DType::kI8, true};
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block + 80), least = f16_at(block + 82);
    to.scale_factor = d;
    to.minimum_factor = least;
    for (int g = 0; g < 16; ++g) {
      to.scales[g] = d * static_cast<float>(byte_at(block, g) & 15);
      to.minimums[g] = least * static_cast<float>(byte_at(block, g) >> 4);
    }
    for (int run = 0; run < 8; ++run) {
      const std::byte* const from = block + 16 + run / 4 * 32;
      for (int l = 0; l < 32; ++l)
        to.codes[32 * run + l] = static_cast<int8_t>(byte_at(from, l) >> (2 * (run % 4)) & 3);
    }
  }

  static bool is_finite(const std::byte* block) {
    return is_finite_f16(block + 80) && is_finite_f16(block + 82);
  }
};

}  // namespace moracle
