#pragma once

#include "quant/codecs/gguf/block_bytes.h"

namespace moracle {

/// Q6_K: 256 elements in 210 bytes, 6.5625 bits each. int8 codes of 16, symmetric.
///
///   0    u8   ql[128]      element 128 h + 64 t + j: nibble t of ql[64 h + j] is bits 0 to 3
///   128  u8   qh[64]       element 128 h + 32 t + l: bits 4 and 5 are bits 2 t and 2 t + 1 of
///                          qh[32 h + l]
///   192  i8   scales[16]   of each group of 16
///   208  f16  d
///
///   value = (d * scale) * (q - 32)
template <>
struct BlockOf<DType::kQ6K> {
  static constexpr Block kBlock = {256, 210};
  static constexpr QuantKey kForm =
      with_codes(with_scales(int8_static_group(16), DType::kI8), CodeSet::kSigned6);
  static constexpr int kZeroPoint = 0;

  static void unpack(const std::byte* block, BlockNumbers& to) {
    const float d = f16_at(block + 208);
    to.scale_factor = d;
    for (int g = 0; g < 16; ++g)
      to.scales[g] = d * static_cast<float>(static_cast<int8_t>(block[192 + g]));
    for (int h = 0; h < 2; ++h) {
      const std::byte* const low = block + 64 * h;
      const std::byte* const high = block + 128 + 32 * h;
      int8_t* const codes = to.codes + 128 * h;
      for (int l = 0; l < 32; ++l) {
        const int bits = byte_at(high, l);
        codes[l] = static_cast<int8_t>(((byte_at(low, l) & 15) | (bits & 3) << 4) - 32);
        codes[32 + l] = static_cast<int8_t>(((byte_at(low, 32 + l) & 15) | (bits & 12) << 2) - 32);
        codes[64 + l] = static_cast<int8_t>((byte_at(low, l) >> 4 | (bits & 48)) - 32);
        codes[96 + l] = static_cast<int8_t>((byte_at(low, 32 + l) >> 4 | (bits & 192) >> 2) - 32);
      }
    }
  }

  static bool is_finite(const std::byte* block) { return is_finite_f16(block + 208); }
};

}  // namespace moracle
