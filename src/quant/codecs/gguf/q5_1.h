#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q5_1: 32 elements in 24 bytes, 6 bits each. int8 codes of 32 with a minimum.
///
///   0   f16  d
///   2   f16  m
///   4   u32  qh       bit i: bit 4 of element i
///   8   u8   qs[16]   bits 0 to 3, as Q4_0
///
///   value = d * q + m, q = nibble | bit << 4
///
/// The minimum is -m.
template <>
struct BlockOf<DType::kQ5_1> {
  static constexpr Block kBlock = {32, 24};
  static constexpr QuantKey kForm = with_codes(
      QuantKey{DType::kI8, per_group(32), false, true, DType::kF16, true}, CodeSet::kUnsigned5);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    to.minimums[0] = -f16_at(block + 2);
    const auto high = number_at<uint32_t>(block + 4);
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 8, i);
      const int low_bit = static_cast<int>(high >> i & 1),
                high_bit = static_cast<int>(high >> (16 + i) & 1);
      to.codes[i] = static_cast<int8_t>((byte & 15) + 16 * low_bit);
      to.codes[16 + i] = static_cast<int8_t>((byte >> 4) + 16 * high_bit);
    }
  }

  static bool is_finite(const std::byte* block) {
    return is_finite_f16(block) && is_finite_f16(block + 2);
  }
};

}  // namespace moracle
