#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q4_0: 32 elements in 18 bytes, 4.5 bits each. int4 codes of 32, symmetric.
///
///   0   f16  d
///   2   u8   qs[16]   low nibbles: elements 0 to 15; high nibbles: 16 to 31
///
///   value = d * (nibble - 8)
template <>
struct BlockOf<DType::kQ4_0> {
  static constexpr Block kBlock = {32, 18};
  static constexpr QuantKey kForm = with_scales(int4_static_group(32), DType::kF16);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 2, i);
      to.codes[i] = static_cast<int8_t>((byte & 15) - 8);
      to.codes[16 + i] = static_cast<int8_t>((byte >> 4) - 8);
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
