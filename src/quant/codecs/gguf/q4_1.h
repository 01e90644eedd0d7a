#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q4_1: 32 elements in 20 bytes, 5 bits each. int4 codes of 32 with a zero point and a minimum.
///
///   0   f16  d
///   2   f16  m
///   4   u8   qs[16]   as Q4_0
///
///   value = d * nibble + m
///
/// The code is nibble - 8 with zero point -8, the minimum is -m.
template <>
struct BlockOf<DType::kQ4_1> {
  static constexpr Block kBlock = {32, 20};
  static constexpr QuantKey kForm = {DType::kI4, per_group(32), false, false, DType::kF16, true};
  static constexpr int kZeroPoint = -8;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    to.minimums[0] = -f16_at(block + 2);
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 4, i);
      to.codes[i] = static_cast<int8_t>((byte & 15) - 8);
      to.codes[16 + i] = static_cast<int8_t>((byte >> 4) - 8);
    }
  }

  static bool is_finite(const std::byte* block) {
    return is_finite_f16(block) && is_finite_f16(block + 2);
  }
};

}  // namespace moracle
