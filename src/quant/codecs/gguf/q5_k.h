#pragma once

#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/scales_of_8.h"

namespace moracle {

/// Q5_K: 256 elements in 176 bytes, 5.5 bits each. int8 codes of 32 with a minimum.
///
///   0   f16  d
///   2   f16  dmin
///   4   u8   scales[12]   as Q4_K
///   16  u8   qh[32]       element 32 g + l: bit g of qh[l] is bit 4
///   48  u8   qs[128]      bits 0 to 3, as Q4_K
///
///   value = (d * s) * q - dmin * m, q = nibble | bit << 4
template <>
struct BlockOf<DType::kQ5K> {
  static constexpr Block kBlock = {256, 176};
  static constexpr QuantKey kForm = with_codes(
      QuantKey{DType::kI8, per_group(32), false, true, DType::kI8, true}, CodeSet::kUnsigned5);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    unpack_scales_of_8(block, to);
    const std::byte* const high = block + 16;
    for (int j = 0; j < 4; ++j) {
      const std::byte* const from = block + 48 + 32 * j;
      int8_t* const codes = to.codes + 64 * j;
      for (int l = 0; l < 32; ++l) {
        const int bits = byte_at(high, l) >> (2 * j);
        codes[l] = static_cast<int8_t>((byte_at(from, l) & 15) | (bits & 1) << 4);
        codes[32 + l] = static_cast<int8_t>(byte_at(from, l) >> 4 | (bits & 2) << 3);
      }
    }
  }

  static bool is_finite(const std::byte* block) {
    return is_finite_f16(block) && is_finite_f16(block + 2);
  }
};

}  // namespace moracle
