#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q5_0: 32 elements in 22 bytes, 5.5 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u32  qh       bit i: bit 4 of element i
///   6   u8   qs[16]   bits 0 to 3, as Q4_0
///
///   value = d * (q - 16), q = nibble | bit << 4
template <>
struct BlockOf<DType::kQ5_0> {
  static constexpr Block kBlock = {32, 22};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kF16), CodeSet::kSigned5);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    const auto high = number_at<uint32_t>(block + 2);
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 6, i);
      const int low_bit = static_cast<int>(high >> i & 1),
                high_bit = static_cast<int>(high >> (16 + i) & 1);
      to.codes[i] = static_cast<int8_t>((byte & 15) + 16 * low_bit - 16);
      to.codes[16 + i] = static_cast<int8_t>((byte >> 4) + 16 * high_bit - 16);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
