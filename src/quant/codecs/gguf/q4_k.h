#pragma once

#include "quant/codecs/gguf/block_bytes.h"
#include "quant/codecs/gguf/scales_of_8.h"

namespace moracle {

/// Q4_K: 256 elements in 144 bytes, 4.5 bits each. int4 codes of 32 with a zero point and a
/// minimum.
///
///   0   f16  d
///   2   f16  dmin
///   4   u8   scales[12]   scale s and minimum m of each group of 32 (scales_of_8.h)
///   16  u8   qs[128]      bytes 32 j to 32 j + 31: low nibbles are group 2 j, high nibbles are
///                         group 2 j + 1
///
///   value = (d * s) * nibble - dmin * m
///
/// The code is nibble - 8 with zero point -8.
template <>
struct BlockOf<DType::kQ4K> {
  static constexpr Block kBlock = {256, 144};
  static constexpr QuantKey kForm = {DType::kI4, per_group(32), false, false, DType::kI8, true};
  static constexpr int kZeroPoint = -8;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    unpack_scales_of_8(block, to);
    for (int j = 0; j < 4; ++j) {
      const std::byte* const from = block + 16 + 32 * j;
      int8_t* const codes = to.codes + 64 * j;
      for (int l = 0; l < 32; ++l) {
        codes[l] = static_cast<int8_t>((byte_at(from, l) & 15) - 8);
        codes[32 + l] = static_cast<int8_t>((byte_at(from, l) >> 4) - 8);
      }
    }
  }

  static bool is_finite(const std::byte* block) {
    return is_finite_f16(block) && is_finite_f16(block + 2);
  }
};

}  // namespace moracle
