#pragma once

#include "quant/code_set.h"
#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// IQ4_NL: 32 elements in 18 bytes, 4.5 bits each. int8 codes of 32, symmetric.
///
///   0   f16  d
///   2   u8   qs[16]   as Q4_0
///
///   value = d * kIq4Values[nibble]
template <>
struct BlockOf<DType::kIQ4NL> {
  static constexpr Block kBlock = {32, 18};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(32), DType::kF16), CodeSet::kIq4);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    to.scales[0] = f16_at(block);
    for (int i = 0; i < 16; ++i) {
      const int byte = byte_at(block + 2, i);
      to.codes[i] = kIq4Values[byte & 15];
      to.codes[16 + i] = kIq4Values[byte >> 4];
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block); }
};

}  // namespace moracle
